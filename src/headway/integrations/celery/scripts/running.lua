-- running: tasks begin and end; worker nodes live and die.
local FIRST_LEASE_MS = 60000  -- what a node has that runs a task before it was heard of
local SHARE_NEW = 0.1         -- how much the newest run counts in a mean

-- start: a task runs. It stops waiting in the same step.
-- args     member, lease, node, then for a task that is not known to wait: its queue ('' if that is not one of ours), name, user
-- returns  1, or 0 if it is running already or not ours
local function start(keys, args)
  begin(keys)
  local member, lease, node = args[1], args[2], args[3]
  local runs = P .. ':lease:' .. node
  if call('HSETNX', runs, member, '') == 0 then return 0 end
  local queue, cost, name, user = take(member, true)
  if not queue then
    queue, name, user = args[4], args[5], args[6]
    if queue == '' then
      call('HDEL', runs, member)
      return 0
    end
    cost = cost_of(name)
    weigh(queue, cost, user, 1)
    tally('unannounced', 1)
  end
  call('HSET', runs, member, string.format('%d', now) .. '\t' .. queue .. '\t' .. cost .. '\t' .. name .. '\t' .. user)
  call('SADD', P .. ':running:' .. queue, lease)
  call('ZADD', P .. ':nodes', 'NX', now + FIRST_LEASE_MS, node)
  tally('started', 1)
  settle()
  return 1
end

-- finish: a run has ended, however it did.
-- args     lease, whether to learn from how long it took (1 or 0), whether it goes back to its queue (1 or 0)
-- returns  1, or 0 if it had ended before
local function finish(keys, args)
  begin(keys)
  local member, queue, name, user, took = stop(args[1])
  if not member then return 0 end
  if args[2] == '1' then
    local mean = tonumber(call('HGET', P .. ':durations', name) or took)
    call('HSET', P .. ':durations', name, string.format('%.1f', mean + SHARE_NEW * (took - mean)))
  end
  if args[3] == '1' and call('HEXISTS', P .. ':task', member) == 0 then enter(member, queue, name, user) end
  tally('finished', 1)
  settle()
  return 1
end

-- Say anew which queues are read, from what each live node reads.
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

-- renew: a node lives. Nodes that were not heard of for too long are dead: nothing runs there any more.
-- args     node, lease ms, ms between two reconciliations, how many queues it reads, those queues, then members that it holds
--          (only where the broker cannot say so)
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

-- leave: a node goes, and nothing runs there any more.
-- args     node
-- returns  1
local function leave(keys, args)
  begin(keys)
  bury(args[1], 'left')
  reopen()
  settle()
  return 1
end
