from tunefarm.proto import records_pb2 as _records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Held(_message.Message):
    __slots__ = ("key", "lease", "epoch")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    key: _records_pb2.TrialKey
    lease: str
    epoch: int
    def __init__(self, key: _Optional[_Union[_records_pb2.TrialKey, _Mapping]] = ..., lease: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("lease", "epoch", "trial")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    lease: str
    epoch: int
    trial: _records_pb2.Trial
    def __init__(self, lease: _Optional[str] = ..., epoch: _Optional[int] = ..., trial: _Optional[_Union[_records_pb2.Trial, _Mapping]] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("device", "lease", "epoch", "request")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    device: str
    lease: str
    epoch: int
    request: _records_pb2.TrialRequest
    def __init__(self, device: _Optional[str] = ..., lease: _Optional[str] = ..., epoch: _Optional[int] = ..., request: _Optional[_Union[_records_pb2.TrialRequest, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("key", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: _records_pb2.TrialKey
    reason: str
    def __init__(self, key: _Optional[_Union[_records_pb2.TrialKey, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "number", "compiler_version", "devices", "held", "results", "capacity", "wait_s", "protocol")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COMPILER_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: str
    number: int
    compiler_version: str
    devices: _containers.RepeatedCompositeFieldContainer[_records_pb2.Device]
    held: _containers.RepeatedCompositeFieldContainer[Held]
    results: _containers.RepeatedCompositeFieldContainer[Result]
    capacity: int
    wait_s: float
    protocol: int
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[str] = ..., number: _Optional[int] = ..., compiler_version: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[_records_pb2.Device, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., capacity: _Optional[int] = ..., wait_s: _Optional[float] = ..., protocol: _Optional[int] = ...) -> None: ...

class SyncReply(_message.Message):
    __slots__ = ("work", "workloads", "cancel", "accepted", "refused", "term_s", "protocol", "checks")
    class WorkloadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ChecksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORK_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TERM_S_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    work: _containers.RepeatedCompositeFieldContainer[Work]
    workloads: _containers.ScalarMap[str, str]
    cancel: _containers.RepeatedCompositeFieldContainer[Held]
    accepted: _containers.RepeatedCompositeFieldContainer[_records_pb2.TrialKey]
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    term_s: float
    protocol: int
    checks: _containers.ScalarMap[str, int]
    def __init__(self, work: _Optional[_Iterable[_Union[Work, _Mapping]]] = ..., workloads: _Optional[_Mapping[str, str]] = ..., cancel: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., accepted: _Optional[_Iterable[_Union[_records_pb2.TrialKey, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., term_s: _Optional[float] = ..., protocol: _Optional[int] = ..., checks: _Optional[_Mapping[str, int]] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ("protocol",)
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    def __init__(self, protocol: _Optional[int] = ...) -> None: ...

class InfoReply(_message.Message):
    __slots__ = ("version", "database", "lease_term_s", "claim_term_s", "started_at", "protocol", "now")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_TERM_S_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TERM_S_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    version: str
    database: str
    lease_term_s: float
    claim_term_s: float
    started_at: float
    protocol: int
    now: float
    def __init__(self, version: _Optional[str] = ..., database: _Optional[str] = ..., lease_term_s: _Optional[float] = ..., claim_term_s: _Optional[float] = ..., started_at: _Optional[float] = ..., protocol: _Optional[int] = ..., now: _Optional[float] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("request_id", "client", "job", "claim_epoch", "request", "wait_s", "waited_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    CLAIM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    client: str
    job: str
    claim_epoch: int
    request: _records_pb2.DeviceRequest
    wait_s: float
    waited_s: float
    def __init__(self, request_id: _Optional[str] = ..., client: _Optional[str] = ..., job: _Optional[str] = ..., claim_epoch: _Optional[int] = ..., request: _Optional[_Union[_records_pb2.DeviceRequest, _Mapping]] = ..., wait_s: _Optional[float] = ..., waited_s: _Optional[float] = ...) -> None: ...

class AcquireReply(_message.Message):
    __slots__ = ("lease", "position", "matching")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MATCHING_FIELD_NUMBER: _ClassVar[int]
    lease: _records_pb2.Lease
    position: int
    matching: int
    def __init__(self, lease: _Optional[_Union[_records_pb2.Lease, _Mapping]] = ..., position: _Optional[int] = ..., matching: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("lease", "epoch")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    lease: str
    epoch: int
    def __init__(self, lease: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _records_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_records_pb2.Lease, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease", "epoch")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    lease: str
    epoch: int
    def __init__(self, lease: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaseCall(_message.Message):
    __slots__ = ("number", "acquire", "renew", "release")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    number: int
    acquire: AcquireRequest
    renew: RenewRequest
    release: ReleaseRequest
    def __init__(self, number: _Optional[int] = ..., acquire: _Optional[_Union[AcquireRequest, _Mapping]] = ..., renew: _Optional[_Union[RenewRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseRequest, _Mapping]] = ...) -> None: ...

class LeaseCalls(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[LeaseCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[LeaseCall, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class LeaseAnswer(_message.Message):
    __slots__ = ("number", "acquire", "renew", "release", "failure")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    number: int
    acquire: AcquireReply
    renew: RenewReply
    release: ReleaseReply
    failure: Failure
    def __init__(self, number: _Optional[int] = ..., acquire: _Optional[_Union[AcquireReply, _Mapping]] = ..., renew: _Optional[_Union[RenewReply, _Mapping]] = ..., release: _Optional[_Union[ReleaseReply, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class LeaseAnswers(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[LeaseAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[LeaseAnswer, _Mapping]]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("lease", "epoch", "requests", "workloads")
    class WorkloadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    lease: str
    epoch: int
    requests: _containers.RepeatedCompositeFieldContainer[_records_pb2.TrialRequest]
    workloads: _containers.ScalarMap[str, str]
    def __init__(self, lease: _Optional[str] = ..., epoch: _Optional[int] = ..., requests: _Optional[_Iterable[_Union[_records_pb2.TrialRequest, _Mapping]]] = ..., workloads: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("done",)
    DONE_FIELD_NUMBER: _ClassVar[int]
    done: _containers.RepeatedCompositeFieldContainer[_records_pb2.TrialKey]
    def __init__(self, done: _Optional[_Iterable[_Union[_records_pb2.TrialKey, _Mapping]]] = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("job", "cursor", "limit", "wait_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    cursor: int
    limit: int
    wait_s: float
    def __init__(self, job: _Optional[str] = ..., cursor: _Optional[int] = ..., limit: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class CollectReply(_message.Message):
    __slots__ = ("trials", "cursor", "pending")
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    trials: _containers.RepeatedCompositeFieldContainer[_records_pb2.Trial]
    cursor: int
    pending: int
    def __init__(self, trials: _Optional[_Iterable[_Union[_records_pb2.Trial, _Mapping]]] = ..., cursor: _Optional[int] = ..., pending: _Optional[int] = ...) -> None: ...

class PendingRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class PendingReply(_message.Message):
    __slots__ = ("requests", "workloads")
    class WorkloadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[_records_pb2.TrialRequest]
    workloads: _containers.ScalarMap[str, str]
    def __init__(self, requests: _Optional[_Iterable[_Union[_records_pb2.TrialRequest, _Mapping]]] = ..., workloads: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SubmitJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class SubmitJobReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class ClaimJobRequest(_message.Message):
    __slots__ = ("request_id", "tuner", "job", "wait_s", "plugins")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TUNER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PLUGINS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tuner: str
    job: str
    wait_s: float
    plugins: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., tuner: _Optional[str] = ..., job: _Optional[str] = ..., wait_s: _Optional[float] = ..., plugins: _Optional[_Iterable[str]] = ...) -> None: ...

class ClaimJobReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class RenewJobRequest(_message.Message):
    __slots__ = ("job", "claim_epoch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CLAIM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    claim_epoch: int
    def __init__(self, job: _Optional[str] = ..., claim_epoch: _Optional[int] = ...) -> None: ...

class RenewJobReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class ReleaseJobRequest(_message.Message):
    __slots__ = ("job", "claim_epoch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CLAIM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    claim_epoch: int
    def __init__(self, job: _Optional[str] = ..., claim_epoch: _Optional[int] = ...) -> None: ...

class ReleaseJobReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class FinishJobRequest(_message.Message):
    __slots__ = ("job", "claim_epoch", "state", "message")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CLAIM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    job: str
    claim_epoch: int
    state: _records_pb2.JobState
    message: str
    def __init__(self, job: _Optional[str] = ..., claim_epoch: _Optional[int] = ..., state: _Optional[_Union[_records_pb2.JobState, str]] = ..., message: _Optional[str] = ...) -> None: ...

class FinishJobReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: str
    reason: str
    def __init__(self, job: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class RetryJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class RetryJobReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class NoteJobRequest(_message.Message):
    __slots__ = ("request_id", "job", "note", "actor")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    job: str
    note: str
    actor: str
    def __init__(self, request_id: _Optional[str] = ..., job: _Optional[str] = ..., note: _Optional[str] = ..., actor: _Optional[str] = ...) -> None: ...

class NoteJobReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class GetJobReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("states", "limit")
    STATES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[_records_pb2.JobState]
    limit: int
    def __init__(self, states: _Optional[_Iterable[_Union[_records_pb2.JobState, str]]] = ..., limit: _Optional[int] = ...) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[_records_pb2.Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[_records_pb2.Job, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("job", "cursor", "wait_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    cursor: int
    wait_s: float
    def __init__(self, job: _Optional[str] = ..., cursor: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("job", "progress", "errors", "cursor")
    class ErrorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.Job
    progress: _containers.RepeatedCompositeFieldContainer[_records_pb2.Progress]
    errors: _containers.ScalarMap[str, int]
    cursor: int
    def __init__(self, job: _Optional[_Union[_records_pb2.Job, _Mapping]] = ..., progress: _Optional[_Iterable[_Union[_records_pb2.Progress, _Mapping]]] = ..., errors: _Optional[_Mapping[str, int]] = ..., cursor: _Optional[int] = ...) -> None: ...

class BestRequest(_message.Message):
    __slots__ = ("keys", "job")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[_records_pb2.BestKey]
    job: str
    def __init__(self, keys: _Optional[_Iterable[_Union[_records_pb2.BestKey, _Mapping]]] = ..., job: _Optional[str] = ...) -> None: ...

class BestReply(_message.Message):
    __slots__ = ("candidates",)
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedCompositeFieldContainer[Candidates]
    def __init__(self, candidates: _Optional[_Iterable[_Union[Candidates, _Mapping]]] = ...) -> None: ...

class Candidates(_message.Message):
    __slots__ = ("key", "found")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    key: _records_pb2.BestKey
    found: _containers.RepeatedCompositeFieldContainer[_records_pb2.Found]
    def __init__(self, key: _Optional[_Union[_records_pb2.BestKey, _Mapping]] = ..., found: _Optional[_Iterable[_Union[_records_pb2.Found, _Mapping]]] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("request_id", "final", "job", "claim_epoch")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    CLAIM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    final: _records_pb2.Final
    job: str
    claim_epoch: int
    def __init__(self, request_id: _Optional[str] = ..., final: _Optional[_Union[_records_pb2.Final, _Mapping]] = ..., job: _Optional[str] = ..., claim_epoch: _Optional[int] = ...) -> None: ...

class PromoteReply(_message.Message):
    __slots__ = ("promoted", "best")
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    promoted: bool
    best: _records_pb2.Best
    def __init__(self, promoted: _Optional[bool] = ..., best: _Optional[_Union[_records_pb2.Best, _Mapping]] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("target", "workloads", "cursor", "limit")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    target: str
    workloads: _containers.RepeatedScalarFieldContainer[str]
    cursor: int
    limit: int
    def __init__(self, target: _Optional[str] = ..., workloads: _Optional[_Iterable[str]] = ..., cursor: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class HistoryReply(_message.Message):
    __slots__ = ("trials", "workloads", "cursor", "more")
    class WorkloadsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    trials: _containers.RepeatedCompositeFieldContainer[_records_pb2.Trial]
    workloads: _containers.ScalarMap[str, str]
    cursor: int
    more: bool
    def __init__(self, trials: _Optional[_Iterable[_Union[_records_pb2.Trial, _Mapping]]] = ..., workloads: _Optional[_Mapping[str, str]] = ..., cursor: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

class TaskStatsRequest(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[_records_pb2.TaskKey]
    def __init__(self, tasks: _Optional[_Iterable[_Union[_records_pb2.TaskKey, _Mapping]]] = ...) -> None: ...

class TaskStatsReply(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: _containers.RepeatedCompositeFieldContainer[_records_pb2.Progress]
    def __init__(self, progress: _Optional[_Iterable[_Union[_records_pb2.Progress, _Mapping]]] = ...) -> None: ...

class CountTrialsRequest(_message.Message):
    __slots__ = ("tasks", "compiler_version", "device_model", "protocol")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    COMPILER_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MODEL_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[_records_pb2.TaskKey]
    compiler_version: str
    device_model: str
    protocol: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[_records_pb2.TaskKey, _Mapping]]] = ..., compiler_version: _Optional[str] = ..., device_model: _Optional[str] = ..., protocol: _Optional[str] = ...) -> None: ...

class CountTrialsReply(_message.Message):
    __slots__ = ("trials",)
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    trials: int
    def __init__(self, trials: _Optional[int] = ...) -> None: ...

class ReportMissesRequest(_message.Message):
    __slots__ = ("request_id", "misses")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    misses: _containers.RepeatedCompositeFieldContainer[_records_pb2.Miss]
    def __init__(self, request_id: _Optional[str] = ..., misses: _Optional[_Iterable[_Union[_records_pb2.Miss, _Mapping]]] = ...) -> None: ...

class ReportMissesReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MissesRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class MissesReply(_message.Message):
    __slots__ = ("misses",)
    MISSES_FIELD_NUMBER: _ClassVar[int]
    misses: _containers.RepeatedCompositeFieldContainer[_records_pb2.Miss]
    def __init__(self, misses: _Optional[_Iterable[_Union[_records_pb2.Miss, _Mapping]]] = ...) -> None: ...

class NoteModelRequest(_message.Message):
    __slots__ = ("name", "target", "tasks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    target: str
    tasks: _containers.RepeatedCompositeFieldContainer[_records_pb2.JobTask]
    def __init__(self, name: _Optional[str] = ..., target: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[_records_pb2.JobTask, _Mapping]]] = ...) -> None: ...

class NoteModelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DevicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DevicesReply(_message.Message):
    __slots__ = ("devices", "leases")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[_records_pb2.Device]
    leases: _containers.RepeatedCompositeFieldContainer[_records_pb2.Lease]
    def __init__(self, devices: _Optional[_Iterable[_Union[_records_pb2.Device, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[_records_pb2.Lease, _Mapping]]] = ...) -> None: ...

class CordonRequest(_message.Message):
    __slots__ = ("request_id", "name", "drain", "revoke_after_s", "actor", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    REVOKE_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    name: str
    drain: bool
    revoke_after_s: float
    actor: str
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ..., drain: _Optional[bool] = ..., revoke_after_s: _Optional[float] = ..., actor: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CordonReply(_message.Message):
    __slots__ = ("cordon", "devices", "leases")
    CORDON_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    cordon: _records_pb2.Cordon
    devices: _containers.RepeatedCompositeFieldContainer[_records_pb2.Device]
    leases: _containers.RepeatedCompositeFieldContainer[_records_pb2.Lease]
    def __init__(self, cordon: _Optional[_Union[_records_pb2.Cordon, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[_records_pb2.Device, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[_records_pb2.Lease, _Mapping]]] = ...) -> None: ...

class UncordonRequest(_message.Message):
    __slots__ = ("request_id", "name", "actor", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    name: str
    actor: str
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ..., actor: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class UncordonReply(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[_records_pb2.Device]
    def __init__(self, devices: _Optional[_Iterable[_Union[_records_pb2.Device, _Mapping]]] = ...) -> None: ...

class CheckDeviceRequest(_message.Message):
    __slots__ = ("request_id", "name", "lift", "actor", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIFT_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    name: str
    lift: bool
    actor: str
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ..., lift: _Optional[bool] = ..., actor: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CheckDeviceReply(_message.Message):
    __slots__ = ("devices", "checks")
    class ChecksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[_records_pb2.Device]
    checks: _containers.ScalarMap[str, int]
    def __init__(self, devices: _Optional[_Iterable[_Union[_records_pb2.Device, _Mapping]]] = ..., checks: _Optional[_Mapping[str, int]] = ...) -> None: ...

class LeaseHistoryRequest(_message.Message):
    __slots__ = ("device", "job", "before", "limit")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    device: str
    job: str
    before: float
    limit: int
    def __init__(self, device: _Optional[str] = ..., job: _Optional[str] = ..., before: _Optional[float] = ..., limit: _Optional[int] = ...) -> None: ...

class LeaseHistoryReply(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[_records_pb2.Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[_records_pb2.Lease, _Mapping]]] = ...) -> None: ...

class RevokeRequest(_message.Message):
    __slots__ = ("request_id", "lease", "actor", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    lease: str
    actor: str
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., lease: _Optional[str] = ..., actor: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RevokeReply(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _records_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_records_pb2.Lease, _Mapping]] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ("subject", "limit")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    limit: int
    def __init__(self, subject: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class AuditReply(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[_records_pb2.AuditEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[_records_pb2.AuditEvent, _Mapping]]] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("request_id", "token", "actor")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    token: _records_pb2.Token
    actor: str
    def __init__(self, request_id: _Optional[str] = ..., token: _Optional[_Union[_records_pb2.Token, _Mapping]] = ..., actor: _Optional[str] = ...) -> None: ...

class CreateTokenReply(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: _records_pb2.Token
    def __init__(self, token: _Optional[_Union[_records_pb2.Token, _Mapping]] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTokensReply(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[_records_pb2.Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[_records_pb2.Token, _Mapping]]] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("request_id", "name", "actor", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    name: str
    actor: str
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ..., actor: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RevokeTokenReply(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[_records_pb2.Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[_records_pb2.Token, _Mapping]]] = ...) -> None: ...
