"""What lists of commands say of each: a line that fits, where the help itself says more."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

SECTIONS = {
    "A model": ("tasks", "tune", "build", "bench", "records"),
    "Jobs": ("submit", "jobs", "watch", "cancel", "report", "misses"),
    "A farm": (
        "tracker", "worker", "tuner", "farm", "devices", "leases", "token", "certificates",
    ),
    "This machine and its database": ("dashboard", "doctor", "db", "config"),
}  # fmt: skip
"""The commands as the help lists them: what a user meets first comes first."""

BRIEFS = {
    "tune": "Search for the fastest code of a model's subgraphs.",
    "build": "Build a model with the best records into a library.",
    "bench": "Time a model's builds, other libraries, the roofs.",
    "tasks": "List what would be tuned, and what is known of it.",
    "records": "List, explain, export and import tuning records.",
    "records list": "List the newest trials, failed ones too.",
    "records best": "Show the best config of each task of a model.",
    "records explain": "Explain which record a build would use, and why.",
    "records export": "Write records to a JSON-lines file.",
    "records import": "Read records from a JSON-lines file.",
    "submit": "Submit a tuning job to a farm, and return at once.",
    "jobs": "List the latest jobs; queue or note one.",
    "jobs retry": "Queue a failed or cancelled job again.",
    "jobs note": "Note something on a job, or take it away.",
    "watch": "Follow a job until it is over.",
    "cancel": "Cancel a job; its trials are kept.",
    "report": "Write a job as one page to send.",
    "misses": "List the tasks that builds reported as untuned.",
    "dashboard": "Show a database in a browser.",
    "doctor": "Look at this machine, and say what to fix.",
    "config": "Where defaults come from: a file, the environment.",
    "config show": "Show each setting and default, and who says it.",
    "config path": "Print the path of the file of defaults.",
    "tracker": "Run the tracker: lends devices, queues jobs.",
    "worker": "Run a worker: times candidates on devices.",
    "tuner": "Run a tuner: claims jobs and searches.",
    "farm": "Watch a whole farm.",
    "farm top": "Show devices, leases, jobs and latest bests, live.",
    "devices": "List the devices of a farm; check or cordon them.",
    "devices cordon": "Grant no new lease of a device or worker.",
    "devices drain": "Cordon it, and ask its leases back.",
    "devices uncordon": "Let a device or worker have leases again.",
    "devices check": "Check a device, or all of a worker, now.",
    "devices lift": "End a quarantine; trust a device as it is now.",
    "devices history": "List who did what to devices, when and why.",
    "leases": "List who holds which device, or held it.",
    "leases revoke": "End a lease now; its job queues for another.",
    "token": "Make, list and revoke what lets in at a farm.",
    "token create": "Make a token; its secret is printed once.",
    "token list": "List the tokens of a farm, without their secrets.",
    "token revoke": "Let nobody in with these tokens any more.",
    "certificates": "Make the certificates of a farm.",
    "db": "Upgrade, back up, restore, prune a database.",
    "db upgrade": "Bring a database to the schema of this release.",
    "db backup": "Copy a whole database, also one in use.",
    "db check": "Check a copy for damage, and tell its schema.",
    "db restore": "Make a database what a copy holds.",
    "db prune": "Delete old trials that no record needs.",
}


class Sections(TyperGroup):
    """The whole command line, whose help lists its commands in ``SECTIONS``."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections; their lines stand one below the other."""
        width = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                rows = [(n.ljust(width), self.commands[n].get_short_help_str(99)) for n in names]
                formatter.write_dl(rows)


def brief(group: Any, words: tuple[str, ...] = ()) -> None:
    """Give the commands of a group, and of the groups in it, their line."""
    for name, command in group.commands.items():
        path = (*words, name)
        command.short_help = BRIEFS.get(" ".join(path))
        if hasattr(command, "commands"):
            brief(command, path)
