-- graph: jobs, the edges into them and a batch, all or none.
local submit_graph
do
local MEMBER, OTHER = {member = true}, {member = false}  -- nodes without edges
-- A record as a client sends it, with more flags, and with its batch (the id behind its length).
local function marked_record(rec, bits, batch)
  local flags, at = $new_job.flags(rec), $new_job.size + $new_job.id_length(rec) + 5
  if not batch then return $new_job{flags = flags + bits} .. $new_job[id_length..](rec) end
  if band(flags, $job.TENANT) ~= 0 then at = at + 2 + i2(rec, at) end
  if band(flags, $job.LIMITS) ~= 0 then at = at + 2 + i2(rec, at) end
  return $new_job{flags = flags + bits + $job.BATCH} .. $new_job[id_length..](sub(rec, 1, at - 1)) .. batch
    .. sub(rec, at)
end

local function tenant_of(rec)  -- of a stored job, or nil
  local tenant = record.sharing(rec, record.flags(rec))
  return tenant and text_at(tenant, 1)
end

-- Read whether each node is a member, and its edges: source, rule, ... Return also the places of those with edges.
local function read_nodes(args, at, n)
  local nodes, waiting = {}, {}
  for i = 1, n do
    local given = args[at + i]
    if #given == 1 then
      nodes[i] = given == '1' and MEMBER or OTHER
    else
      local node, place, source = {member = sub(given, 1, 1) == '1'}, 2, nil
      while place <= #given do
        local rule = sub(given, place, place)
        source, place = text_at(given, place + 1)
        push(node, source, rule)
      end
      nodes[i] = node
      push(waiting, i)
    end
  end
  return nodes, waiting
end

local function closed(id)  -- the answer if a batch takes no more members
  local found = workflow.batch(id)
  if not found then return {'no_batch', id} end
  if found.cancel then return {'closed', id, 'was cancelled'} end
  return found.finished and {'closed', id, 'has ended'} or nil
end

local function sent_tenant(jobs, i)  -- of a job as a client sends it, or nil
  local rec = jobs.args[jobs.first + i]
  return $new_job.flags(rec) ~= 0 and tenant_of($job{submitted = ZERO, class = 0} .. rec) or nil
end

local function check_open(jobs, nodes, create, batch)  -- return the answer if the batch, or a parent, takes no members
  if create then return create.parent and closed(create.parent) end
  if not batch then return nil end
  for i, node in ipairs(nodes) do
    if node.member and call('HEXISTS', P .. 'ids', jobs.ids[i]) == 0 then return closed(batch) end
  end
  return not workflow.batch(batch) and {'no_batch', batch} or nil
end

local function check_members(jobs, nodes, create, batch)  -- return the answer if something is wrong
  local wrong = check_open(jobs, nodes, create, batch)
  if wrong or not batch then return wrong end
  local parent = create and create.parent and workflow.batch(create.parent)
  if parent and parent.tenant and parent.tenant ~= create.tenant then return {'tenant', create.parent} end
  local tenant = (create or workflow.batch(batch)).tenant
  if not tenant then return nil end
  for i, node in ipairs(nodes) do
    if node.member and sent_tenant(jobs, i) ~= tenant then return {'tenant', batch, num(i - 1)} end
  end
  return nil
end

local function around(batch, create)  -- the batches that cannot end before a member: its batch and the parents of that
  local found = {}
  while batch do
    found[batch] = true
    local known = create and create.id == batch and create or workflow.batch(batch)
    batch = known and known.parent
  end
  return found
end

local function check_sources(jobs, nodes, waiting, batch, create)  -- return the answer if an edge is wrong
  if #waiting == 0 then return nil end
  local outer = around(batch, create)
  local inner, own = {}, {}
  for i = 1, jobs.n do
    own[i] = sent_tenant(jobs, i)
    inner[jobs.ids[i]] = own[i] or false
  end
  if create then inner[create.id] = create.tenant or false end
  for _, i in ipairs(waiting) do
    local node = nodes[i]
    for k = 1, #node, 2 do
      local source = node[k]
      if node.member and outer[source] then return {'cycle', num(i - 1), source} end
      local tenant, found = inner[source], nil
      if tenant == nil then
        found = workflow.batch(source)
        local member = not found and call('HGET', P .. 'ids', source)
        if not found and not member then return {'bad_edge', num(i - 1), source, 'unknown'} end
        if found then tenant = found.tenant elseif own[i] then tenant = tenant_of(record.of(member)) end
      end
      if own[i] and tenant ~= own[i] then return {'bad_edge', num(i - 1), source, 'tenant'} end
    end
  end
  return nil
end

local function create_batch(new)
  local seq = call('HINCRBY', P .. 'meta', 'seq', 1)
  tx.batch[new.id] = {}
  for field, value in pairs({
    name = new.name, key = new.key, tenant = new.tenant, parent = new.parent, seq = seq, created = now, open = new.open,
    total = 0, kept = 0, live = 0, children = 0, held = 0, running = 0, completed = 0, failed = 0, cancelled = 0,
    failing = 0, round = 1,
  }) do workflow.set(new.id, field, value) end
  call('ZADD', P .. 'batches', num(seq), new.id)
  if new.key then call('HSET', P .. 'batch_keys', text(new.tenant or '') .. new.key, new.id) end
  if new.parent then
    local parent = workflow.batch(new.parent)
    call('SADD', P .. 'kids:' .. new.parent, new.id)
    workflow.set(new.parent, 'total', parent.total + 1)
    workflow.set(new.parent, 'live', parent.live + 1)
    workflow.set(new.parent, 'children', parent.children + 1)
  end
  workflow.count(new.id, 'live', 0)  -- an empty batch that is not open ends at once
end

local function add_members(batch, nodes, jobs, members)  -- as ranges, since jobs of one graph have consecutive numbers
  local ranges, n, held, found, first = {}, 0, 0, workflow.batch(batch), nil
  for k, i in ipairs(jobs.fresh) do
    local node = nodes[i]
    if node.member then
      first = first or members[k]
      n, held = n + 1, held + (#node > 0 and 1 or 0)
    end
    local follows = jobs.fresh[k + 1]
    if first and not (follows and nodes[follows].member) then
      push(ranges, num(tonumber(members[k]) - BASE), first)
      first = nil
    end
  end
  if n == 0 then return end
  bulk('ZADD', P .. 'bm:' .. batch, ranges)
  workflow.set(batch, 'total', found.total + n)
  workflow.set(batch, 'kept', found.kept + n)
  workflow.set(batch, 'live', found.live + n)
  workflow.set(batch, 'held', found.held + held)
end

local function add_edges(nodes, waiting, jobs, members, same, back)  -- return the jobs whose edges need not all wait
  local fresh, marked, settled = {}, {}, {}
  if #waiting == 0 then return settled end
  for _, i in ipairs(jobs.fresh) do fresh[jobs.ids[i]] = true end
  for k, i in ipairs(jobs.fresh) do
    local node, member, waits = nodes[i], members[k], true
    if #node > 0 then
      local edges, left, seen, seq = {}, 0, #node > 2 and {}, num(tonumber(member) - BASE)
      for at = 1, #node, 2 do
        local source = same[node[at]] or node[at]
        if not (seen and seen[source]) then  -- two sources may turn out to be one
          if seen then seen[source] = true end
          left = left + 1
          push(edges, '>' .. source, $edge{rule = node[at + 1], satisfied = '0', place = left})
          call('ZADD', P .. 'down:' .. source, seq, member)
          if not fresh[source] then
            waits = waits and not workflow.would_settle(source, node[at + 1])
            local known = not marked[source] and call('HGET', P .. 'ids', source)
            if known then workflow.mark_source(known) end
            marked[source] = true
          end
        end
      end
      push(edges, 'left', num(left))
      if back then push(edges, 'back', '1') end
      bulk('HSET', P .. 'up:' .. member, edges)
      if not waits then push(settled, member) end
    end
  end
  return settled
end

-- submit_graph: store a batch, jobs and edges, or none of them.
-- args     1 to create a batch, its id or the one of the members or '', name, key, tenant and parent (each behind an =,
--          or ''), 1 if it is open, 1 to release jobs to the back, how many nodes, of each node 1 if it is a member and
--          then letter and source of each edge; then as submit
-- returns  ok, batch, 1 if this call or an earlier one with its id created it, then index and id of each job that
--          another stands in for; or
--          conflict, index, what;  cycle, index, source;  bad_edge, index, source, why;
--          no_batch, batch;  closed, batch, why;  tenant, batch, index or nothing
function submit_graph(keys, args)
  begin(keys, args)
  local function optional(value) return value ~= '' and sub(value, 2) or nil end
  local batch, back, n = args[3] ~= '' and args[3] or nil, args[9] == '1', tonumber(args[10])
  local create = args[2] == '1' and {
    id = args[3], name = args[4], key = optional(args[5]), tenant = optional(args[6]), parent = optional(args[7]),
    open = tonumber(args[8]),
  } or nil
  local nodes, waiting = read_nodes(args, 10, n)
  local jobs = read_jobs(args, 11 + n)
  if create then
    local known = create.key and call('HGET', P .. 'batch_keys', text(create.tenant or '') .. create.key)
    if known or workflow.batch(batch) then batch, create = known or batch, nil end
  end
  local wrong = check_members(jobs, nodes, create, batch) or check_sources(jobs, nodes, waiting, batch, create)
    or find_fresh(jobs)
  if wrong then return wrong end
  local same, is_source, marked, held, batch_text = {}, {}, {}, {}, batch and text(batch)
  for i, id in pairs(jobs.stands) do same[jobs.ids[i]] = id end
  for _, i in ipairs(waiting) do
    for k = 1, #nodes[i], 2 do is_source[same[nodes[i][k]] or nodes[i][k]] = true end
  end
  for _, i in ipairs(jobs.fresh) do
    local bits = (#nodes[i] > 0 and $job.WAITS or 0) + (is_source[jobs.ids[i]] and $job.SOURCE or 0)
    marked[i] = marked_record(args[jobs.first + i], bits, nodes[i].member and batch_text)
    held[i] = #nodes[i] > 0
    if held[i] then count('held', 1) end
  end
  call('HSET', P .. 'meta', 'flows', '1')
  if create then create_batch(create) end
  local members = store_jobs(jobs, marked, held)
  if batch and #jobs.fresh > 0 then add_members(batch, nodes, jobs, members) end
  tx.changed, tx.alone = answered_ids(jobs), #jobs.fresh == 1
  for _, member in ipairs(add_edges(nodes, waiting, jobs, members, same, back)) do workflow.settle_dependant(member) end
  ordering.flush()
  settle()
  return answer_of(jobs, {'ok', batch or '', args[2] == '1' and batch == args[3] and 1 or 0})
end
end
