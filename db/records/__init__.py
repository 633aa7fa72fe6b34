"""Record types of the farm and the database (standard library only).

Every type is an immutable value. These are contracts: the database, the wire format and the
JSON-lines export are made from them, so a field is added with a default and never changes meaning.
"""

from tunefarm.db.records.access import AuditEvent, Role, Token
from tunefarm.db.records.best import Best, Final, Found, Match, Promotion, Verdict
from tunefarm.db.records.devices import HEALTH, Cordon, Device, DeviceRequest, Health, Lease
from tunefarm.db.records.jobs import (
    IDLE,
    IDLE_PRIORITY,
    OWNED,
    TRIALS_A_TASK,
    UNNAMED,
    Budget,
    Job,
    JobState,
    JobTask,
    JobUpdate,
    Miss,
    Progress,
    model_digest,
)
from tunefarm.db.records.keys import (
    DEFAULT_PROTOCOL,
    BestKey,
    Config,
    TaskKey,
    TrialKey,
    WorkloadRecord,
)
from tunefarm.db.records.plugins import (
    COMPILER_TAG,
    PLUGIN_TAG,
    plugin_conditions,
    plugin_tags,
    plugins_in,
)
from tunefarm.db.records.trials import (
    FINAL,
    LOOK,
    Collected,
    ErrorKind,
    History,
    Trial,
    TrialRequest,
)
from tunefarm.db.records.work import (
    FarmInfo,
    Held,
    Refusal,
    Result,
    Work,
    WorkerOrders,
    WorkerState,
)

__all__ = [
    "COMPILER_TAG",
    "DEFAULT_PROTOCOL",
    "FINAL",
    "HEALTH",
    "IDLE",
    "IDLE_PRIORITY",
    "LOOK",
    "OWNED",
    "PLUGIN_TAG",
    "TRIALS_A_TASK",
    "UNNAMED",
    "AuditEvent",
    "Best",
    "BestKey",
    "Budget",
    "Collected",
    "Config",
    "Cordon",
    "Device",
    "DeviceRequest",
    "ErrorKind",
    "FarmInfo",
    "Final",
    "Found",
    "Health",
    "Held",
    "History",
    "Job",
    "JobState",
    "JobTask",
    "JobUpdate",
    "Lease",
    "Match",
    "Miss",
    "Progress",
    "Promotion",
    "Refusal",
    "Result",
    "Role",
    "TaskKey",
    "Token",
    "Trial",
    "TrialKey",
    "TrialRequest",
    "Verdict",
    "Work",
    "WorkerOrders",
    "WorkerState",
    "WorkloadRecord",
    "model_digest",
    "plugin_conditions",
    "plugin_tags",
    "plugins_in",
]
