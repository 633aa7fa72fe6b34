"""The doctor's look at the database, at a tracker, and at plug-ins."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tunefarm.compiler.errors import TunefarmError
from tunefarm.doctor.findings import Finding, State
from tunefarm.texts import counted

MAX_SKEW_S = 1.0
CERTIFICATE_S = 30 * 86400.0
"""How long before its end a certificate is to be renewed."""


def examine_database(url: str) -> Iterator[Finding]:
    from tunefarm.db.dialect import parse_url, sqlite_path
    from tunefarm.db.errors import StoreError
    from tunefarm.db.store import Store

    try:
        path = sqlite_path(parse_url(url))
        if path is not None and not path.exists():
            yield Finding("database", State.OK, f"none yet; the first `tunefarm tune` makes {path}")
            return
        with Store.open(url, readonly=True) as store:
            trials, jobs = store.count_trials(), len(store.jobs())
            yield Finding(
                "database",
                State.OK,
                f"{store.name}: {counted(trials, 'trial')}, {counted(jobs, 'job')}",
            )
    except StoreError as error:
        yield Finding("database", State.FIX, str(error))


def examine_tracker(address: str) -> Iterator[Finding]:
    from tunefarm.farm import connect
    from tunefarm.proto.errors import FarmError

    try:
        with connect(address) as client:
            client.info()  # once to connect, then once to compare clocks
            asked_at = time.time()
            info = client.info()
            skew_s = info.now - (asked_at + time.time()) / 2
            devices = client.devices()
    except (FarmError, TunefarmError) as error:
        yield Finding("tracker", State.FIX, str(error))
        return
    online = sum(device.state != "offline" for device in devices)
    told = f"{address} runs tunefarm {info.version}, {online} of {len(devices)} devices online"
    yield Finding("tracker", State.OK, told)
    told = f"its clock and this one differ by {abs(skew_s):.1f} s"
    if abs(skew_s) > MAX_SKEW_S:
        remedy = (
            "tokens expire and records are dated by it: set both by NTP (timedatectl set-ntp on)"
        )
        yield Finding("clocks", State.FIX, told, remedy)
    else:
        yield Finding("clocks", State.OK, told)


def examine_certificates(tracker: str) -> Iterator[Finding]:
    """Of a connection with TLS: the tracker's certificate, this machine's own, and their CA."""
    from tunefarm.farm import place_of
    from tunefarm.proto.errors import FarmError
    from tunefarm.proto.tls import expires_at, shown_by

    try:
        address, tls = place_of(tracker)
    except FarmError:
        return  # the tracker's finding says so
    if tls is None:
        return
    found = {"the tracker's": shown_by(address)}
    found["the CA's"] = expires_at(tls.ca) if tls.ca else None
    found["this machine's"] = expires_at(tls.certificate) if tls.certificate else None
    ends = {whose: at for whose, at in found.items() if at is not None}
    if not ends:
        return
    whose, first = min(ends.items(), key=lambda item: item[1])
    told = f"{whose} ends first, on {time.strftime('%Y-%m-%d', time.gmtime(first))}"
    if first - time.time() < CERTIFICATE_S:
        remedy = (
            "nobody gets in after that: `tunefarm certificates` renews it (see docs/operations.md)"
        )
        yield Finding("certs", State.FIX, told, remedy)
    else:
        yield Finding("certs", State.OK, told)


def examine_plugins() -> Iterator[Finding]:
    from tunefarm.compiler import plugins

    here = plugins.loaded()
    if here:
        yield Finding("plug-ins", State.OK, ", ".join(str(plugin) for plugin in here.values()))
    for why in plugins.broken().values():
        yield Finding("plug-ins", State.FIX, why, "mend the package, or uninstall it")
