from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_KIND_UNSPECIFIED: _ClassVar[ErrorKind]
    ERROR_KIND_INSTANTIATION: _ClassVar[ErrorKind]
    ERROR_KIND_BUILD_ERROR: _ClassVar[ErrorKind]
    ERROR_KIND_BUILD_TIMEOUT: _ClassVar[ErrorKind]
    ERROR_KIND_WRONG_ANSWER: _ClassVar[ErrorKind]
    ERROR_KIND_RUN_ERROR: _ClassVar[ErrorKind]
    ERROR_KIND_RUN_CRASH: _ClassVar[ErrorKind]
    ERROR_KIND_RUN_TIMEOUT: _ClassVar[ErrorKind]
    ERROR_KIND_OUT_OF_MEMORY: _ClassVar[ErrorKind]
    ERROR_KIND_DEVICE_LOST: _ClassVar[ErrorKind]
    ERROR_KIND_LEASE_LOST: _ClassVar[ErrorKind]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_SUCCEEDED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_BETTER: _ClassVar[Verdict]
    VERDICT_SAME: _ClassVar[Verdict]
    VERDICT_AMBIGUOUS: _ClassVar[Verdict]

class Match(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MATCH_UNSPECIFIED: _ClassVar[Match]
    MATCH_EXACT: _ClassVar[Match]
    MATCH_TARGET: _ClassVar[Match]
    MATCH_COMPATIBLE: _ClassVar[Match]
    MATCH_FOREIGN: _ClassVar[Match]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_WORKER: _ClassVar[Role]
    ROLE_CLIENT: _ClassVar[Role]
    ROLE_TUNER: _ClassVar[Role]
    ROLE_ADMIN: _ClassVar[Role]
ERROR_KIND_UNSPECIFIED: ErrorKind
ERROR_KIND_INSTANTIATION: ErrorKind
ERROR_KIND_BUILD_ERROR: ErrorKind
ERROR_KIND_BUILD_TIMEOUT: ErrorKind
ERROR_KIND_WRONG_ANSWER: ErrorKind
ERROR_KIND_RUN_ERROR: ErrorKind
ERROR_KIND_RUN_CRASH: ErrorKind
ERROR_KIND_RUN_TIMEOUT: ErrorKind
ERROR_KIND_OUT_OF_MEMORY: ErrorKind
ERROR_KIND_DEVICE_LOST: ErrorKind
ERROR_KIND_LEASE_LOST: ErrorKind
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_SUCCEEDED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState
VERDICT_UNSPECIFIED: Verdict
VERDICT_BETTER: Verdict
VERDICT_SAME: Verdict
VERDICT_AMBIGUOUS: Verdict
MATCH_UNSPECIFIED: Match
MATCH_EXACT: Match
MATCH_TARGET: Match
MATCH_COMPATIBLE: Match
MATCH_FOREIGN: Match
ROLE_UNSPECIFIED: Role
ROLE_WORKER: Role
ROLE_CLIENT: Role
ROLE_TUNER: Role
ROLE_ADMIN: Role

class ConfigValue(_message.Message):
    __slots__ = ("number", "text")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    number: int
    text: str
    def __init__(self, number: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Config(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ConfigValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ConfigValue, _Mapping]] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.MessageMap[str, ConfigValue]
    def __init__(self, values: _Optional[_Mapping[str, ConfigValue]] = ...) -> None: ...

class TaskKey(_message.Message):
    __slots__ = ("workload", "target")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    workload: str
    target: str
    def __init__(self, workload: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class TrialKey(_message.Message):
    __slots__ = ("job", "task", "number")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    job: str
    task: TaskKey
    number: int
    def __init__(self, job: _Optional[str] = ..., task: _Optional[_Union[TaskKey, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class BestKey(_message.Message):
    __slots__ = ("workload", "target", "device_model", "protocol")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MODEL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    workload: str
    target: str
    device_model: str
    protocol: str
    def __init__(self, workload: _Optional[str] = ..., target: _Optional[str] = ..., device_model: _Optional[str] = ..., protocol: _Optional[str] = ...) -> None: ...

class Workload(_message.Message):
    __slots__ = ("key", "text", "summary", "flops")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    key: str
    text: str
    summary: str
    flops: int
    def __init__(self, key: _Optional[str] = ..., text: _Optional[str] = ..., summary: _Optional[str] = ..., flops: _Optional[int] = ...) -> None: ...

class JobTask(_message.Message):
    __slots__ = ("workload", "weight", "protocol")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    workload: Workload
    weight: int
    protocol: str
    def __init__(self, workload: _Optional[_Union[Workload, _Mapping]] = ..., weight: _Optional[int] = ..., protocol: _Optional[str] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("trials", "seconds")
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    trials: int
    seconds: float
    def __init__(self, trials: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "target", "tasks", "budget", "options", "state", "priority", "message", "claimed_by", "claim_epoch", "claim_term_s", "created_at", "updated_at", "compiler_version", "selector", "unmet", "owner", "recall", "model_name", "note")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_BY_FIELD_NUMBER: _ClassVar[int]
    CLAIM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TERM_S_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    COMPILER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    UNMET_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    id: str
    target: str
    tasks: _containers.RepeatedCompositeFieldContainer[JobTask]
    budget: Budget
    options: _containers.ScalarMap[str, str]
    state: JobState
    priority: int
    message: str
    claimed_by: str
    claim_epoch: int
    claim_term_s: float
    created_at: float
    updated_at: float
    compiler_version: str
    selector: str
    unmet: str
    owner: str
    recall: str
    model_name: str
    note: str
    def __init__(self, id: _Optional[str] = ..., target: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[JobTask, _Mapping]]] = ..., budget: _Optional[_Union[Budget, _Mapping]] = ..., options: _Optional[_Mapping[str, str]] = ..., state: _Optional[_Union[JobState, str]] = ..., priority: _Optional[int] = ..., message: _Optional[str] = ..., claimed_by: _Optional[str] = ..., claim_epoch: _Optional[int] = ..., claim_term_s: _Optional[float] = ..., created_at: _Optional[float] = ..., updated_at: _Optional[float] = ..., compiler_version: _Optional[str] = ..., selector: _Optional[str] = ..., unmet: _Optional[str] = ..., owner: _Optional[str] = ..., recall: _Optional[str] = ..., model_name: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class Miss(_message.Message):
    __slots__ = ("workload", "target", "weight", "default_s", "roofline_s", "builds", "reported_at", "job", "selector")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_S_FIELD_NUMBER: _ClassVar[int]
    ROOFLINE_S_FIELD_NUMBER: _ClassVar[int]
    BUILDS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_AT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    workload: Workload
    target: str
    weight: int
    default_s: float
    roofline_s: float
    builds: int
    reported_at: float
    job: str
    selector: str
    def __init__(self, workload: _Optional[_Union[Workload, _Mapping]] = ..., target: _Optional[str] = ..., weight: _Optional[int] = ..., default_s: _Optional[float] = ..., roofline_s: _Optional[float] = ..., builds: _Optional[int] = ..., reported_at: _Optional[float] = ..., job: _Optional[str] = ..., selector: _Optional[str] = ...) -> None: ...

class Health(_message.Message):
    __slots__ = ("checked_at", "check", "reference_s", "drift", "trial_noise", "trouble")
    CHECKED_AT_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_S_FIELD_NUMBER: _ClassVar[int]
    DRIFT_FIELD_NUMBER: _ClassVar[int]
    TRIAL_NOISE_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    checked_at: float
    check: int
    reference_s: float
    drift: float
    trial_noise: float
    trouble: str
    def __init__(self, checked_at: _Optional[float] = ..., check: _Optional[int] = ..., reference_s: _Optional[float] = ..., drift: _Optional[float] = ..., trial_noise: _Optional[float] = ..., trouble: _Optional[str] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("id", "kind", "model", "target", "worker", "attributes", "peaks", "noise", "epoch", "state", "compiler_version", "cordon", "cordon_reason", "health")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PeaksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    PEAKS_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COMPILER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CORDON_FIELD_NUMBER: _ClassVar[int]
    CORDON_REASON_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    model: str
    target: str
    worker: str
    attributes: _containers.ScalarMap[str, str]
    peaks: _containers.ScalarMap[str, float]
    noise: float
    epoch: int
    state: str
    compiler_version: str
    cordon: str
    cordon_reason: str
    health: Health
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., model: _Optional[str] = ..., target: _Optional[str] = ..., worker: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., peaks: _Optional[_Mapping[str, float]] = ..., noise: _Optional[float] = ..., epoch: _Optional[int] = ..., state: _Optional[str] = ..., compiler_version: _Optional[str] = ..., cordon: _Optional[str] = ..., cordon_reason: _Optional[str] = ..., health: _Optional[_Union[Health, _Mapping]] = ...) -> None: ...

class DeviceRequest(_message.Message):
    __slots__ = ("target", "device_model", "attributes", "priority", "compiler_version", "selector")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MODEL_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    COMPILER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    target: str
    device_model: str
    attributes: _containers.ScalarMap[str, str]
    priority: int
    compiler_version: str
    selector: str
    def __init__(self, target: _Optional[str] = ..., device_model: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., priority: _Optional[int] = ..., compiler_version: _Optional[str] = ..., selector: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("id", "device", "client", "epoch", "term_s", "deadline", "ended_reason", "job", "granted_at", "ended_at", "recall", "owner")
    ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TERM_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    ENDED_REASON_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    GRANTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    id: str
    device: str
    client: str
    epoch: int
    term_s: float
    deadline: float
    ended_reason: str
    job: str
    granted_at: float
    ended_at: float
    recall: str
    owner: str
    def __init__(self, id: _Optional[str] = ..., device: _Optional[str] = ..., client: _Optional[str] = ..., epoch: _Optional[int] = ..., term_s: _Optional[float] = ..., deadline: _Optional[float] = ..., ended_reason: _Optional[str] = ..., job: _Optional[str] = ..., granted_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., recall: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class Cordon(_message.Message):
    __slots__ = ("scope", "subject", "drain", "actor", "reason", "at", "revoke_at")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REVOKE_AT_FIELD_NUMBER: _ClassVar[int]
    scope: str
    subject: str
    drain: bool
    actor: str
    reason: str
    at: float
    revoke_at: float
    def __init__(self, scope: _Optional[str] = ..., subject: _Optional[str] = ..., drain: _Optional[bool] = ..., actor: _Optional[str] = ..., reason: _Optional[str] = ..., at: _Optional[float] = ..., revoke_at: _Optional[float] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("digest", "name", "role", "devices", "max_priority", "created_at", "created_by", "expires_at", "revoked_at", "used_at")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MAX_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    name: str
    role: Role
    devices: str
    max_priority: int
    created_at: float
    created_by: str
    expires_at: float
    revoked_at: float
    used_at: float
    def __init__(self, digest: _Optional[str] = ..., name: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., devices: _Optional[str] = ..., max_priority: _Optional[int] = ..., created_at: _Optional[float] = ..., created_by: _Optional[str] = ..., expires_at: _Optional[float] = ..., revoked_at: _Optional[float] = ..., used_at: _Optional[float] = ...) -> None: ...

class AuditEvent(_message.Message):
    __slots__ = ("at", "actor", "action", "subject", "reason")
    AT_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at: float
    actor: str
    action: str
    subject: str
    reason: str
    def __init__(self, at: _Optional[float] = ..., actor: _Optional[str] = ..., action: _Optional[str] = ..., subject: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class TrialRequest(_message.Message):
    __slots__ = ("job", "task", "number", "config", "predicted", "origin", "against", "budgets", "plugins", "protocol")
    class BudgetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    AGAINST_FIELD_NUMBER: _ClassVar[int]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    PLUGINS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    job: str
    task: TaskKey
    number: int
    config: Config
    predicted: float
    origin: str
    against: _containers.RepeatedCompositeFieldContainer[Config]
    budgets: _containers.ScalarMap[str, float]
    plugins: _containers.RepeatedScalarFieldContainer[str]
    protocol: str
    def __init__(self, job: _Optional[str] = ..., task: _Optional[_Union[TaskKey, _Mapping]] = ..., number: _Optional[int] = ..., config: _Optional[_Union[Config, _Mapping]] = ..., predicted: _Optional[float] = ..., origin: _Optional[str] = ..., against: _Optional[_Iterable[_Union[Config, _Mapping]]] = ..., budgets: _Optional[_Mapping[str, float]] = ..., plugins: _Optional[_Iterable[str]] = ..., protocol: _Optional[str] = ...) -> None: ...

class Times(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, seconds: _Optional[_Iterable[float]] = ...) -> None: ...

class Trial(_message.Message):
    __slots__ = ("job", "task", "number", "config", "times_s", "error", "message", "stderr_tail", "device", "device_model", "device_state", "protocol", "compiler_version", "space_fingerprint", "code_hash", "predicted", "origin", "phases_s", "paired_times_s", "created_at")
    class DeviceStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class PhasesSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TIMES_S_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STDERR_TAIL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MODEL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_STATE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    COMPILER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SPACE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CODE_HASH_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PHASES_S_FIELD_NUMBER: _ClassVar[int]
    PAIRED_TIMES_S_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    job: str
    task: TaskKey
    number: int
    config: Config
    times_s: _containers.RepeatedScalarFieldContainer[float]
    error: ErrorKind
    message: str
    stderr_tail: str
    device: str
    device_model: str
    device_state: _containers.ScalarMap[str, float]
    protocol: str
    compiler_version: str
    space_fingerprint: str
    code_hash: str
    predicted: float
    origin: str
    phases_s: _containers.ScalarMap[str, float]
    paired_times_s: _containers.RepeatedCompositeFieldContainer[Times]
    created_at: float
    def __init__(self, job: _Optional[str] = ..., task: _Optional[_Union[TaskKey, _Mapping]] = ..., number: _Optional[int] = ..., config: _Optional[_Union[Config, _Mapping]] = ..., times_s: _Optional[_Iterable[float]] = ..., error: _Optional[_Union[ErrorKind, str]] = ..., message: _Optional[str] = ..., stderr_tail: _Optional[str] = ..., device: _Optional[str] = ..., device_model: _Optional[str] = ..., device_state: _Optional[_Mapping[str, float]] = ..., protocol: _Optional[str] = ..., compiler_version: _Optional[str] = ..., space_fingerprint: _Optional[str] = ..., code_hash: _Optional[str] = ..., predicted: _Optional[float] = ..., origin: _Optional[str] = ..., phases_s: _Optional[_Mapping[str, float]] = ..., paired_times_s: _Optional[_Iterable[_Union[Times, _Mapping]]] = ..., created_at: _Optional[float] = ...) -> None: ...

class Best(_message.Message):
    __slots__ = ("key", "trial", "promoted", "verdict", "speedup_over_default", "model", "model_speedup", "final_s")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_OVER_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    FINAL_S_FIELD_NUMBER: _ClassVar[int]
    key: BestKey
    trial: Trial
    promoted: bool
    verdict: Verdict
    speedup_over_default: float
    model: str
    model_speedup: float
    final_s: float
    def __init__(self, key: _Optional[_Union[BestKey, _Mapping]] = ..., trial: _Optional[_Union[Trial, _Mapping]] = ..., promoted: _Optional[bool] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., speedup_over_default: _Optional[float] = ..., model: _Optional[str] = ..., model_speedup: _Optional[float] = ..., final_s: _Optional[float] = ...) -> None: ...

class Found(_message.Message):
    __slots__ = ("best", "match")
    BEST_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    best: Best
    match: Match
    def __init__(self, best: _Optional[_Union[Best, _Mapping]] = ..., match: _Optional[_Union[Match, str]] = ...) -> None: ...

class Final(_message.Message):
    __slots__ = ("key", "challenger", "incumbent", "verdict", "speedup", "speedup_over_default", "model", "latency_s")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHALLENGER_FIELD_NUMBER: _ClassVar[int]
    INCUMBENT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_OVER_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    key: BestKey
    challenger: TrialKey
    incumbent: TrialKey
    verdict: Verdict
    speedup: float
    speedup_over_default: float
    model: str
    latency_s: float
    def __init__(self, key: _Optional[_Union[BestKey, _Mapping]] = ..., challenger: _Optional[_Union[TrialKey, _Mapping]] = ..., incumbent: _Optional[_Union[TrialKey, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., speedup: _Optional[float] = ..., speedup_over_default: _Optional[float] = ..., model: _Optional[str] = ..., latency_s: _Optional[float] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("task", "summary", "flops", "weight", "ok", "failed", "pending", "best_s", "default_s", "final_look")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    BEST_S_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_S_FIELD_NUMBER: _ClassVar[int]
    FINAL_LOOK_FIELD_NUMBER: _ClassVar[int]
    task: TaskKey
    summary: str
    flops: int
    weight: int
    ok: int
    failed: int
    pending: int
    best_s: float
    default_s: float
    final_look: int
    def __init__(self, task: _Optional[_Union[TaskKey, _Mapping]] = ..., summary: _Optional[str] = ..., flops: _Optional[int] = ..., weight: _Optional[int] = ..., ok: _Optional[int] = ..., failed: _Optional[int] = ..., pending: _Optional[int] = ..., best_s: _Optional[float] = ..., default_s: _Optional[float] = ..., final_look: _Optional[int] = ...) -> None: ...
