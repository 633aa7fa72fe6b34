BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0016');
CREATE TABLE audit (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	request_id VARCHAR NOT NULL, 
	at DOUBLE NOT NULL, 
	actor VARCHAR NOT NULL, 
	action VARCHAR(16) NOT NULL, 
	subject VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	CONSTRAINT audit_unique_request_id UNIQUE (request_id)
);
CREATE TABLE best (
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	device_model VARCHAR NOT NULL, 
	protocol VARCHAR NOT NULL, 
	space_fingerprint VARCHAR NOT NULL, 
	compiler_version VARCHAR NOT NULL, 
	trial_id INTEGER NOT NULL, 
	median_s DOUBLE NOT NULL, 
	default_s DOUBLE, 
	promoted BOOLEAN NOT NULL, 
	verdict VARCHAR, 
	speedup_over_default DOUBLE, 
	model VARCHAR, 
	model_speedup DOUBLE, 
	CONSTRAINT best_key PRIMARY KEY (workload_id, target_id, device_model, protocol, space_fingerprint, compiler_version), 
	CONSTRAINT best_target_id_in_targets FOREIGN KEY(target_id) REFERENCES targets (id), 
	CONSTRAINT best_trial_id_in_trials FOREIGN KEY(trial_id) REFERENCES trials (id), 
	CONSTRAINT best_workload_id_in_workloads FOREIGN KEY(workload_id) REFERENCES workloads (id)
)
 WITHOUT ROWID

;
INSERT INTO "best" VALUES(1,1,'EPYC','warm-activations-cold-weights-v1','f1','',1,0.275,0.275,0,NULL,NULL,NULL,NULL);
CREATE TABLE claim_terms (
	job VARCHAR NOT NULL, 
	epoch INTEGER NOT NULL, 
	deadline DOUBLE NOT NULL, 
	CONSTRAINT claim_terms_key PRIMARY KEY (job)
);
CREATE TABLE cordons (
	scope VARCHAR(8) NOT NULL, 
	subject VARCHAR NOT NULL, 
	drain BOOLEAN NOT NULL, 
	actor VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	at DOUBLE NOT NULL, 
	revoke_at DOUBLE, 
	CONSTRAINT cordons_key PRIMARY KEY (scope, subject)
);
CREATE TABLE device_checks (
	device VARCHAR NOT NULL, 
	at DOUBLE NOT NULL, 
	peaks JSON NOT NULL, 
	noise DOUBLE NOT NULL, 
	trial_noise DOUBLE NOT NULL, 
	reference_s DOUBLE NOT NULL, 
	reason VARCHAR NOT NULL, 
	CONSTRAINT device_checks_key PRIMARY KEY (device, at), 
	CONSTRAINT device_checks_device_in_devices FOREIGN KEY(device) REFERENCES devices (id)
);
CREATE TABLE devices (
	id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	model VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	worker VARCHAR NOT NULL, 
	attributes JSON NOT NULL, 
	peaks JSON NOT NULL, 
	noise DOUBLE NOT NULL, 
	epoch INTEGER NOT NULL, health JSON DEFAULT '{}' NOT NULL, check_number INTEGER DEFAULT '0' NOT NULL, lost INTEGER DEFAULT '0' NOT NULL, trusted_at DOUBLE DEFAULT '0' NOT NULL, 
	CONSTRAINT devices_key PRIMARY KEY (id), 
	CONSTRAINT devices_worker_in_workers FOREIGN KEY(worker) REFERENCES workers (id)
);
CREATE TABLE finals (
	id INTEGER NOT NULL, 
	request_id VARCHAR NOT NULL, 
	challenger_id INTEGER NOT NULL, 
	incumbent_id INTEGER, 
	verdict VARCHAR NOT NULL, 
	speedup DOUBLE, 
	speedup_over_default DOUBLE, 
	promoted BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, model VARCHAR, latency_s DOUBLE, 
	CONSTRAINT finals_key PRIMARY KEY (id), 
	CONSTRAINT finals_challenger_id_in_trials FOREIGN KEY(challenger_id) REFERENCES trials (id), 
	CONSTRAINT finals_incumbent_id_in_trials FOREIGN KEY(incumbent_id) REFERENCES trials (id), 
	CONSTRAINT finals_unique_request_id UNIQUE (request_id)
);
CREATE TABLE incarnations (
	worker VARCHAR NOT NULL, 
	incarnation VARCHAR NOT NULL, 
	started_at DOUBLE NOT NULL, 
	CONSTRAINT incarnations_key PRIMARY KEY (worker, incarnation), 
	CONSTRAINT incarnations_worker_in_workers FOREIGN KEY(worker) REFERENCES workers (id)
);
CREATE TABLE job_tasks (
	job VARCHAR NOT NULL, 
	position INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	weight INTEGER NOT NULL, 
	ok INTEGER NOT NULL, 
	failed INTEGER NOT NULL, 
	best_s DOUBLE, 
	default_s DOUBLE, 
	errors JSON NOT NULL, protocol VARCHAR DEFAULT '' NOT NULL, 
	CONSTRAINT job_tasks_key PRIMARY KEY (job, position), 
	CONSTRAINT job_tasks_job_in_jobs FOREIGN KEY(job) REFERENCES jobs (id), 
	CONSTRAINT job_tasks_workload_id_in_workloads FOREIGN KEY(workload_id) REFERENCES workloads (id), 
	CONSTRAINT job_tasks_unique_job_workload_id UNIQUE (job, workload_id)
);
CREATE TABLE jobs (
	id VARCHAR NOT NULL, 
	target_id INTEGER NOT NULL, 
	budget_trials INTEGER NOT NULL, 
	budget_s DOUBLE, 
	options JSON NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	priority INTEGER NOT NULL, 
	message VARCHAR NOT NULL, 
	claimed_by VARCHAR NOT NULL, 
	claim_epoch INTEGER NOT NULL, 
	claim_request VARCHAR NOT NULL, 
	revision INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, compiler_version VARCHAR, selector VARCHAR DEFAULT '' NOT NULL, owner VARCHAR DEFAULT '' NOT NULL, model VARCHAR(16) DEFAULT '' NOT NULL, note VARCHAR DEFAULT '' NOT NULL, noted_by VARCHAR DEFAULT '' NOT NULL, noted_at DOUBLE, name VARCHAR DEFAULT '' NOT NULL, 
	CONSTRAINT jobs_key PRIMARY KEY (id), 
	CONSTRAINT jobs_target_id_in_targets FOREIGN KEY(target_id) REFERENCES targets (id)
);
CREATE TABLE leases (
	id VARCHAR NOT NULL, 
	request_id VARCHAR NOT NULL, 
	device VARCHAR NOT NULL, 
	client VARCHAR NOT NULL, 
	job VARCHAR NOT NULL, 
	epoch INTEGER NOT NULL, 
	term_s DOUBLE NOT NULL, 
	granted_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	ended_reason VARCHAR NOT NULL, owner VARCHAR DEFAULT '' NOT NULL, deadline DOUBLE, 
	CONSTRAINT leases_key PRIMARY KEY (id), 
	CONSTRAINT leases_device_in_devices FOREIGN KEY(device) REFERENCES devices (id), 
	CONSTRAINT leases_unique_device_epoch UNIQUE (device, epoch), 
	CONSTRAINT leases_unique_request_id UNIQUE (request_id)
);
CREATE TABLE misses (
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	weight INTEGER NOT NULL, 
	default_s DOUBLE NOT NULL, 
	roofline_s DOUBLE NOT NULL, 
	builds INTEGER NOT NULL, 
	reported_at DOUBLE NOT NULL, 
	request_id VARCHAR NOT NULL, 
	job VARCHAR NOT NULL, selector VARCHAR DEFAULT '' NOT NULL, 
	CONSTRAINT misses_key PRIMARY KEY (workload_id, target_id), 
	CONSTRAINT misses_workload_id_in_workloads FOREIGN KEY(workload_id) REFERENCES workloads (id), 
	CONSTRAINT misses_target_id_in_targets FOREIGN KEY(target_id) REFERENCES targets (id)
);
CREATE TABLE model_tasks (
	digest VARCHAR(16) NOT NULL, 
	position INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	weight INTEGER NOT NULL, 
	CONSTRAINT model_tasks_key PRIMARY KEY (digest, position), 
	CONSTRAINT model_tasks_workload_id_in_workloads FOREIGN KEY(workload_id) REFERENCES workloads (id)
);
CREATE TABLE models (
	digest VARCHAR(16) NOT NULL, 
	target_id INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	created_at DOUBLE NOT NULL, 
	seen_at DOUBLE NOT NULL, 
	CONSTRAINT models_key PRIMARY KEY (digest, target_id), 
	CONSTRAINT models_target_id_in_targets FOREIGN KEY(target_id) REFERENCES targets (id)
);
CREATE TABLE requests (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job VARCHAR NOT NULL, 
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	lease VARCHAR, 
	config JSON NOT NULL, 
	predicted DOUBLE, 
	origin VARCHAR NOT NULL, 
	against JSON NOT NULL, 
	budgets JSON NOT NULL, 
	attempts INTEGER NOT NULL, 
	delivered_to VARCHAR, 
	created_at DOUBLE NOT NULL, plugins JSON DEFAULT '[]' NOT NULL, protocol VARCHAR DEFAULT '' NOT NULL, 
	CONSTRAINT requests_lease_in_leases FOREIGN KEY(lease) REFERENCES leases (id), 
	CONSTRAINT requests_target_id_in_targets FOREIGN KEY(target_id) REFERENCES targets (id), 
	CONSTRAINT requests_workload_id_in_workloads FOREIGN KEY(workload_id) REFERENCES workloads (id), 
	CONSTRAINT requests_unique_job_workload_id_target_id_number UNIQUE (job, workload_id, target_id, number)
);
CREATE TABLE targets (
	id INTEGER NOT NULL, 
	text VARCHAR NOT NULL, 
	CONSTRAINT targets_key PRIMARY KEY (id), 
	CONSTRAINT targets_unique_text UNIQUE (text)
);
INSERT INTO "targets" VALUES(1,'llvm -mcpu=znver5 -num-cores=2');
CREATE TABLE tasks (
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	ok INTEGER NOT NULL, 
	failed INTEGER NOT NULL, 
	best_s DOUBLE, 
	default_s DOUBLE, 
	CONSTRAINT tasks_key PRIMARY KEY (workload_id, target_id), 
	CONSTRAINT tasks_target_id_in_targets FOREIGN KEY(target_id) REFERENCES targets (id), 
	CONSTRAINT tasks_workload_id_in_workloads FOREIGN KEY(workload_id) REFERENCES workloads (id)
)
 WITHOUT ROWID

;
INSERT INTO "tasks" VALUES(1,1,1,0,0.275,0.275);
CREATE TABLE tokens (
	digest VARCHAR(64) NOT NULL, 
	name VARCHAR NOT NULL, 
	role VARCHAR(8) NOT NULL, 
	devices VARCHAR NOT NULL, 
	max_priority INTEGER, 
	created_at DOUBLE NOT NULL, 
	created_by VARCHAR NOT NULL, 
	expires_at DOUBLE, 
	revoked_at DOUBLE, used_at DOUBLE, 
	CONSTRAINT tokens_key PRIMARY KEY (digest)
);
CREATE TABLE trackers (
	id VARCHAR NOT NULL, 
	address VARCHAR NOT NULL, 
	started_at DOUBLE NOT NULL, 
	beat_at DOUBLE NOT NULL, 
	CONSTRAINT trackers_key PRIMARY KEY (id)
);
CREATE TABLE trials (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job VARCHAR NOT NULL, 
	workload_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	config JSON NOT NULL, 
	times_s JSON NOT NULL, 
	median_s DOUBLE, 
	error VARCHAR(32), 
	message VARCHAR NOT NULL, 
	stderr_tail VARCHAR NOT NULL, 
	device VARCHAR NOT NULL, 
	device_model VARCHAR NOT NULL, 
	device_state JSON NOT NULL, 
	protocol VARCHAR NOT NULL, 
	compiler_version VARCHAR NOT NULL, 
	space_fingerprint VARCHAR NOT NULL, 
	code_hash VARCHAR NOT NULL, 
	predicted DOUBLE, 
	origin VARCHAR NOT NULL, 
	phases_s JSON NOT NULL, 
	paired_times_s JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT trials_target_id_in_targets FOREIGN KEY(target_id) REFERENCES targets (id), 
	CONSTRAINT trials_workload_id_in_workloads FOREIGN KEY(workload_id) REFERENCES workloads (id), 
	CONSTRAINT trials_unique_job_workload_id_target_id_number UNIQUE (job, workload_id, target_id, number)
);
INSERT INTO "trials" VALUES(1,'kept',1,1,0,'{"sketch":"gemm","tile":8}','[0.30000000000000004,0.25]',0.275,NULL,'','','d1','EPYC','{}','warm-activations-cold-weights-v1','','f1','',NULL,'','{"build":0.5}','[]',1.5);
CREATE TABLE waiting (
	id VARCHAR NOT NULL, 
	tracker VARCHAR NOT NULL, 
	request JSON NOT NULL, 
	since DOUBLE NOT NULL, 
	asked_at DOUBLE NOT NULL, 
	CONSTRAINT waiting_key PRIMARY KEY (id)
);
CREATE TABLE workers (
	id VARCHAR NOT NULL, 
	incarnation VARCHAR NOT NULL, 
	compiler_version VARCHAR NOT NULL, 
	started_at DOUBLE NOT NULL, owner VARCHAR DEFAULT '' NOT NULL, seen_at DOUBLE, capacity INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT workers_key PRIMARY KEY (id)
);
CREATE TABLE workloads (
	id INTEGER NOT NULL, 
	"key" VARCHAR NOT NULL, 
	text VARCHAR NOT NULL, 
	summary VARCHAR NOT NULL, 
	flops BIGINT NOT NULL, 
	CONSTRAINT workloads_key PRIMARY KEY (id), 
	CONSTRAINT workloads_unique_key UNIQUE ("key")
);
INSERT INTO "workloads" VALUES(1,'16188283876170a45fba90f4b564a995660d682d2741e135eb99bce379458b71','gemm','gemm 8x8',1024);
CREATE INDEX trials_by_job_id ON trials (job, id);
CREATE INDEX trials_by_target_id_id ON trials (target_id, id);
CREATE INDEX trials_by_workload_id_target_id_id ON trials (workload_id, target_id, id);
CREATE INDEX jobs_by_created_at ON jobs (created_at);
CREATE INDEX jobs_by_state_priority_created_at ON jobs (state, priority, created_at);
CREATE INDEX leases_live_by_job ON leases (job) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX leases_one_live_a_device ON leases (device) WHERE ended_at IS NULL;
CREATE INDEX requests_by_lease_id ON requests (lease, id);
CREATE INDEX leases_by_granted_at ON leases (granted_at);
CREATE INDEX best_by_trial_id ON best (trial_id);
CREATE INDEX finals_by_challenger_id ON finals (challenger_id);
CREATE INDEX finals_by_incumbent_id ON finals (incumbent_id);
CREATE INDEX models_by_seen_at ON models (seen_at);
CREATE INDEX model_tasks_by_workload_id ON model_tasks (workload_id);
CREATE INDEX jobs_by_model_target_id_created_at ON jobs (model, target_id, created_at);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('trials',1);
COMMIT;
