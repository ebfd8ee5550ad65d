-- 0002_workflows: edges between jobs, batches that count jobs, and the steps that jobs keep.
-- holds  a held job is in delayed, due at HELD_AT of core/workflow.py; jobs and batches share one sequence of numbers

-- The mark of a job: it is a member of a batch, or an edge comes from it (awaited is 1). Both are empty for other jobs,
-- and the lease repeats them, so that the end of a plain job reads nothing else.
ALTER TABLE job ADD COLUMN batch_seq INTEGER;
ALTER TABLE job ADD COLUMN awaited INTEGER;
ALTER TABLE lease ADD COLUMN batch_seq INTEGER;
ALTER TABLE lease ADD COLUMN awaited INTEGER;
CREATE INDEX job_batch ON job (batch_seq) WHERE batch_seq IS NOT NULL;

-- live counts the members that have not ended, children those of them that are batches, and held those that are held.
-- A batch has ended, and finished_at is set, once it is not open and live is 0.
CREATE TABLE batch (
  seq INTEGER PRIMARY KEY,
  namespace_id INTEGER NOT NULL,
  batch_id TEXT NOT NULL,
  name TEXT NOT NULL,
  key TEXT,
  tenant TEXT,
  parent_seq INTEGER,
  open INTEGER NOT NULL,
  total INTEGER NOT NULL DEFAULT 0,
  live INTEGER NOT NULL DEFAULT 0,
  children INTEGER NOT NULL DEFAULT 0,
  held INTEGER NOT NULL DEFAULT 0,
  completed INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  failing INTEGER NOT NULL DEFAULT 0,
  round INTEGER NOT NULL DEFAULT 1,
  created_at INTEGER NOT NULL,
  cancel_at INTEGER,
  finished_at INTEGER,
  UNIQUE (batch_id, namespace_id)
);
CREATE UNIQUE INDEX batch_key ON batch (namespace_id, key, ifnull(tenant, '')) WHERE key IS NOT NULL;
CREATE INDEX batch_parent ON batch (parent_seq) WHERE parent_seq IS NOT NULL;

-- source is the id of the job or batch, since that may be pruned once its dependants have ended.
CREATE TABLE edge (
  source_seq INTEGER NOT NULL,
  dependant_seq INTEGER NOT NULL,
  place INTEGER NOT NULL,      -- the order in which the edges of a dependant were given
  rule TEXT NOT NULL,
  satisfied INTEGER NOT NULL,
  again INTEGER NOT NULL DEFAULT 0,  -- a new round began while the callback ran, so it is held again once it has ended
  source TEXT NOT NULL,
  PRIMARY KEY (source_seq, dependant_seq)
) WITHOUT ROWID;
CREATE INDEX edge_dependant ON edge (dependant_seq, place);

-- One row for each job with edges, for as long as the job. pending counts its unsatisfied edges.
CREATE TABLE dependant (
  seq INTEGER PRIMARY KEY,
  pending INTEGER NOT NULL,
  due_at INTEGER NOT NULL,     -- the end of its own delay, which applies once it is released
  back INTEGER NOT NULL        -- whether it then goes to the back of its queue
);

-- What earlier verbs have left. The edges of a source behind the dependant that was reached, or, if members is 1, the
-- members of a cancelled batch behind the one that was reached.
CREATE TABLE unsettled (
  place INTEGER PRIMARY KEY,
  namespace_id INTEGER NOT NULL,
  source_seq INTEGER NOT NULL,
  members INTEGER NOT NULL,
  reached INTEGER NOT NULL,
  UNIQUE (source_seq, members)
);

-- bytes counts the values of this step and of those before it.
CREATE TABLE step (
  seq INTEGER NOT NULL,
  number INTEGER NOT NULL,
  key TEXT NOT NULL,
  value BLOB NOT NULL,
  bytes INTEGER NOT NULL,
  PRIMARY KEY (seq, number),
  UNIQUE (seq, key)
);
