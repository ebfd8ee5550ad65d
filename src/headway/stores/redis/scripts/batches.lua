-- batches: read, close and cancel batches, and read what jobs wait for; steps of running jobs.
local batches = {}

-- upstreams_of: of each edge of a job its source, rule, 1 if it is satisfied, status as a letter, state of a job or '',
-- outcome of a job or '', and of a batch 1, name, live, total.
function batches.upstreams_of(member, results)
  local found = {}
  for _, edge in ipairs(workflow.edges(member)) do
    local status = workflow.status_of(edge.source, edge.satisfied)
    local view = {edge.source, edge.rule, edge.satisfied and 1 or 0, status, '', '', 0, '', 0, 0}
    local batch, source = workflow.batch(edge.source), call('HGET', P .. 'ids', edge.source)
    if batch then
      view[7], view[8], view[9], view[10] = 1, batch.name, batch.live, batch.total
    elseif source then
      local out = call('HGET', P .. 'out', source)
      view[5] = out and $outcome.state(out) or call('HEXISTS', P .. 'lease', source) == 1 and 'E' or 'Q'
      view[6] = results and out or ''
    end
    push(found, view)
  end
  return found
end

-- upstreams: args  1 with outcomes, ids.  returns  upstreams of each.
function batches.upstreams(keys, args)
  begin(keys, args)
  local found = {}
  for i, member in ipairs(members_of(from(args, 3))) do
    found[i] = member and batches.upstreams_of(member, args[2] == '1') or {}
  end
  return found
end

local function view_of(id)  -- the fields of a batch as names and texts, or false
  local flat = call('HGETALL', P .. 'b:' .. id)
  return #flat > 0 and flat
end

-- get_batches: args  ids.  returns  now, then field and value ... or false for each.
function batches.get(keys, args)
  begin(keys, args)
  local found = {now}
  for i = 2, #args do found[i] = view_of(args[i]) end
  return found
end

-- find_batches: batches, newest first.
-- args     the number to start below ('' for the newest), how many
-- returns  now, then id and field and value ... of each
function batches.find(keys, args)
  begin(keys, args)
  local found, from = {now}, args[2] == '' and '+inf' or '(' .. args[2]
  for _, id in ipairs(call('ZRANGE', P .. 'batches', from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, args[3])) do
    local fields = view_of(id)
    if fields then push(found, id, fields) end
  end
  return found
end

-- close_batch: let a batch end once all its members have ended.  args  batch.  returns  now, fields or false.
function batches.close(keys, args)
  begin(keys, args)
  if workflow.batch(args[2]) then
    workflow.set(args[2], 'open', 0)
    workflow.count(args[2], 'live', 0)
    settle()
  end
  return {now, view_of(args[2])}
end

-- cancel_batch: cancel a batch and its child batches.  args  batch.  returns  now, fields or false.
function batches.cancel(keys, args)
  begin(keys, args)
  local todo, at = {args[2]}, 1
  while todo[at] do
    local id = todo[at]
    local found = workflow.batch(id)
    if found and not found.finished and not found.cancel then
      workflow.set(id, 'cancel', now)
      workflow.set(id, 'open', 0)
      workflow.count(id, 'live', 0)
      call('RPUSH', P .. 'stopping', id)
      not_quiet()
      local kids = call('SMEMBERS', P .. 'kids:' .. id)
      table.sort(kids, before)
      for _, kid in ipairs(kids) do push(todo, kid) end
    end
    at = at + 1
  end
  settle()
  return {now, view_of(args[2])}
end

-- members: jobs of a batch in the order of adding.
-- args     batch, the number to start behind, states as letters ('' for any), how many jobs and bytes at most
-- returns  now, the number to go on behind (0: there are no more), pieces
function batches.members(keys, args)
  begin(keys, args)
  local found, size = {}, 0
  local some, more = workflow.members(args[2], tonumber(args[3]), tonumber(args[5]))
  for i, member in ipairs(some) do
    local whole = pieces(member)
    if whole and (args[4] == '' or string.find(args[4], whole[3], 1, true)) then
      push(found, whole)
      size = size + #whole[2] + #whole[4]
      if size > tonumber(args[6]) and (more or i < #some) then return {now, tonumber(member) - BASE, found} end
    end
  end
  return {now, more and tonumber(some[#some]) - BASE or 0, found}
end

-- record_step: keep a step of a running job.
-- args     member, token, key, value, bytes of a value, steps and bytes of all steps at most
-- returns  1; 0 if the lease has ended; or count and bytes of the steps that leave no room for this one
function batches.record_step(keys, args)
  begin(keys, args)
  local member, key, value = args[2], args[4], args[5]
  local held = call('HGET', P .. 'lease', member)
  if not held or $lease.token(held) ~= args[3] then return 0 end
  local kept = P .. 'st:' .. member
  if call('HEXISTS', kept, key) == 1 then return 1 end
  local sums = call('HGET', P .. 'steps', member) or $steps{count = 0, bytes = 0}
  local n, size = $steps.count(sums), $steps.bytes(sums)
  if #value > tonumber(args[6]) or n >= tonumber(args[7]) or size + #value > tonumber(args[8]) then return {n, size} end
  call('HSET', P .. 'steps', member, $steps{count = n + 1, bytes = size + #value})
  call('HSET', kept, key, $step{place = n, value = value})
  return 1
end

-- steps: of a job.  args  id.  returns  key and step of each.
function batches.steps(keys, args)
  begin(keys, args)
  local member = call('HGET', P .. 'ids', args[2])
  return member and call('HGETALL', P .. 'st:' .. member) or {}
end
