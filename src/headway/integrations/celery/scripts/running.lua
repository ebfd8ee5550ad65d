-- running: starts and ends of tasks, and the leases of worker nodes.
local FIRST_LEASE_MS = 60000  -- of a node that runs a task before its first renew
local SHARE_NEW = 0.1         -- weight of the newest run in the mean duration

local function learn(name, took)
  local mean = tonumber(call('HGET', P .. ':durations', name) or took)
  call('HSET', P .. ':durations', name, string.format('%.1f', mean + SHARE_NEW * (took - mean)))
end

-- Record that a task runs and no longer waits. Return whether it did not run before.
local function start(lease, queue, name, user)
  local member, node = match(lease, '^(.-)@(.*)$')
  local runs = P .. ':lease:' .. node
  if call('HEXISTS', runs, member) == 1 then return false end
  local known, cost, known_name, known_user = take(member, true)
  if known then
    queue, name, user = known, known_name, known_user
  elseif queue == '' then
    return false
  else
    cost = cost_of(name)
    weigh(queue, cost, user, 1)
    tally('unannounced', 1)
  end
  call('HSET', runs, member, string.format('%d', now) .. '\t' .. queue .. '\t' .. cost .. '\t' .. name .. '\t' .. user)
  call('SADD', P .. ':running:' .. queue, lease)
  call('ZADD', P .. ':nodes', 'NX', now + FIRST_LEASE_MS, node)
  tally('started', 1)
  return true
end

-- Record that a run has ended. Return whether it was known.
local function finish(lease, learned, again)
  local member, queue, name, user = stop(lease)
  if not member then return false end
  if learned ~= '' then learn(name, tonumber(learned)) end
  if again == '1' and call('HEXISTS', P .. ':task', member) == 0 then enter(member, queue, name, user) end
  tally('finished', 1)
  return true
end

-- Record a whole run at once. Return whether its queue is balanced.
local function ran(lease, queue, name, learned, again)
  local member, node = match(lease, '^(.-)@(.*)$')
  if call('HEXISTS', P .. ':lease:' .. node, member) == 1 then return finish(lease, learned, again) end
  local known = call('HEXISTS', P .. ':task', member) == 1
  if not known then
    if queue == '' then return false end
    tally('unannounced', 1)
  end
  if known and again ~= '1' then
    local _, _, known_name = take(member)
    name = known_name
  end
  if learned ~= '' then learn(name, tonumber(learned)) end
  tally('started', 1)
  tally('finished', 1)
  return true
end

-- runs: starts and ends of tasks, in order.
-- args     of each: start, finish or ran (both at once); the lease; for a task that is not known to wait its queue (''
--          if that is not balanced), name and user; how many ms it took, if that is to be learned, else ''; whether
--          it goes back to its queue (1 or 0)
-- returns  how many of them changed a count
-- holds    a task that begins stops waiting in the same step; repeated, nothing is counted twice in any queue
local function runs(keys, args)
  begin(keys)
  local news = 0
  for i = 1, #args, 7 do
    local what, lease, queue, name, user = args[i], args[i + 1], args[i + 2], args[i + 3], args[i + 4]
    local new
    if what == 'start' then
      new = start(lease, queue, name, user)
    elseif what == 'finish' then
      new = finish(lease, args[i + 5], args[i + 6])
    else
      new = ran(lease, queue, name, args[i + 5], args[i + 6])
    end
    if new then news = news + 1 end
  end
  settle()
  return news
end

-- Compute which queues are read, from the queues of each live node.
local function reopen()
  call('DEL', P .. ':open')
  local consumes = call('HGETALL', P .. ':consumes')
  for i = 1, #consumes, 2 do
    local ends = call('ZSCORE', P .. ':nodes', consumes[i])
    for queue in string.gmatch(consumes[i + 1], '[^\t]+') do
      if ends then call('ZADD', P .. ':open', 'GT', ends, queue) end
    end
  end
end

local function bury(node, what)
  local members = call('HKEYS', P .. ':lease:' .. node)
  for _, member in ipairs(members) do stop(member .. '@' .. node) end
  tally(what, #members)
  call('ZREM', P .. ':nodes', node)
  call('HDEL', P .. ':consumes', node)
  call('DEL', P .. ':held:' .. node)
end

-- renew: extend the lease of a node. Nodes past their lease are dead, and their runs end.
-- args     node, lease ms, ms between two reconciliations, how many queues it reads, those queues, then members that it
--          holds (only where the broker cannot say so)
-- returns  whether this node is the one to reconcile now, then the leases it has
local function renew(keys, args)
  begin(keys)
  local node, ends, queues = args[1], now + tonumber(args[2]), tonumber(args[4])
  call('ZADD', P .. ':nodes', ends, node)
  local reads = table.concat(args, '\t', 5, 4 + queues)
  local changed = call('HGET', P .. ':consumes', node) ~= reads
  if changed then call('HSET', P .. ':consumes', node, reads) end
  local dead = call('ZRANGEBYSCORE', P .. ':nodes', '-inf', now)
  for _, other in ipairs(dead) do bury(other, 'lost') end
  if changed or #dead > 0 then
    reopen()
  else
    for i = 5, 4 + queues do call('ZADD', P .. ':open', 'GT', ends, args[i]) end
  end
  call('DEL', P .. ':held:' .. node)
  for i = 5 + queues, #args do call('SADD', P .. ':held:' .. node, args[i]) end
  for _, queue in ipairs(call('HKEYS', P .. ':load')) do
    if call('ZREMRANGEBYSCORE', P .. ':promised:' .. queue, '-inf', now)
      + call('ZREMRANGEBYSCORE', P .. ':claimed:' .. queue, '-inf', now) > 0 then touched[queue] = true end
  end
  settle()
  local due = now - tonumber(call('HGET', P .. ':tally', 'reconciled_at') or 0) >= tonumber(args[3])
  if due then call('HSET', P .. ':tally', 'reconciled_at', now) end
  local found = {due and 1 or 0}
  for _, member in ipairs(call('HKEYS', P .. ':lease:' .. node)) do found[#found + 1] = member .. '@' .. node end
  return found
end

-- leave: remove a node and end its runs.
-- args     node
-- returns  1
local function leave(keys, args)
  begin(keys)
  bury(args[1], 'left')
  reopen()
  settle()
  return 1
end
