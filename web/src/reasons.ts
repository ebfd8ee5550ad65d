/** The codes of reasons in a few words. The full text comes with each job. */

export const REASONS: Record<string, string> = {
  scheduled: "a later time",
  paused: "a pause to end",
  unroutable: "a worker that knows its task",
  unservable: "a worker with its capabilities",
  no_worker: "a worker",
  rate: "its rate",
  limit: "room in a limit",
  ladder: "room on its rung",
  slots_full: "a free slot",
  reserved: "slots that are reserved",
  lane: "a higher lane",
  lane_share: "its lane's share",
  tenant_share: "its tenant's share",
  ahead: "jobs ahead of it",
  stopping: "stopping workers",
  depends: "jobs it depends on",
  ready: "the next claim",
};
