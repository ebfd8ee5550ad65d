-- common: helpers of all functions. The keys of the ledger start with P, the one key that a call declares:
--   P:task         hash: member (task id/retries) to queue, cost, task name, user; of each task that waits
--   P:pending:Q    sorted set: members that wait in queue Q, by when they were counted
--   P:lease:N      hash: member to when it began, queue, cost, task name, user; of each run on worker node N
--   P:running:Q    set: leases (member@node) of what runs from queue Q
--   P:promised:Q, P:claimed:Q   sorted sets: what was counted by hand, by when that ends
--   P:nodes        sorted set: nodes by the end of their own lease
--   P:consumes     hash: node to the queues it reads
--   P:open         sorted set: queues by the end of their last reader's lease
--   P:load, P:work hashes: queue to how many tasks, and to how many ms of work, it has waiting or running
--   P:users        hash: user to how many tasks wait or run     P:durations  hash: task name to the mean ms of a run
--   P:tally        hash: totals by name
-- queue:Q:pending and queue:Q:running are for readers. They and P:load are written from the sizes of the sets, never
-- from what they were before, so there is nothing that could drift.
local call, match, floor  -- set by the first call: none is there when the library is loaded
local UNKNOWN_MS = 1000  -- expected duration of a task before a run of the same name has ended
local P, now, touched, tallied

local function begin(keys)
  call, match, floor = redis.call, string.match, math.floor
  P = keys[1]
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
  touched, tallied = {}, {}
end

local function tally(what, by)
  tallied[what] = (tallied[what] or 0) + by
end

local function pending_of(queue)
  return call('ZCARD', P .. ':pending:' .. queue) + call('ZCARD', P .. ':promised:' .. queue)
end

local function running_of(queue)
  return call('SCARD', P .. ':running:' .. queue) + call('ZCARD', P .. ':claimed:' .. queue)
end

-- Write the loads of the changed queues, and the totals.
local function settle()
  for what, by in pairs(tallied) do
    if by ~= 0 then call('HINCRBY', P .. ':tally', what, by) end
  end
  local base = match(P, '^(.*)headway:celery:')
  for queue in pairs(touched) do
    local pending, running = call('ZCARD', P .. ':pending:' .. queue), call('SCARD', P .. ':running:' .. queue)
    if call('EXISTS', P .. ':promised:' .. queue, P .. ':claimed:' .. queue) > 0 then
      pending, running = pending_of(queue), running_of(queue)
    end
    call('MSET', base .. 'queue:' .. queue .. ':pending', pending, base .. 'queue:' .. queue .. ':running', running)
    call('HSET', P .. ':load', queue, pending + running)
  end
end

local function weigh(queue, cost, user, sign)
  call('HINCRBY', P .. ':work', queue, sign * cost)
  if user ~= '' and call('HINCRBY', P .. ':users', user, sign) <= 0 then call('HDEL', P .. ':users', user) end
  touched[queue] = true
end

local function cost_of(name)
  return floor(tonumber(call('HGET', P .. ':durations', name) or UNKNOWN_MS)) + 1
end

-- Count a task as waiting in a queue. It must not wait yet.
local function enter(member, queue, name, user)
  local cost = cost_of(name)
  call('HSET', P .. ':task', member, queue .. '\t' .. cost .. '\t' .. name .. '\t' .. user)
  call('ZADD', P .. ':pending:' .. queue, now, member)
  weigh(queue, cost, user, 1)
  return cost
end

-- Count a task as waiting no longer. Return its queue, cost, name and user, or nothing if it did not wait. Its load
-- stays if it runs next.
local function take(member, to_run)
  local detail = call('HGET', P .. ':task', member)
  if not detail then return nil end
  local queue, cost, name, user = match(detail, '^(.-)\t(.-)\t(.-)\t(.*)$')
  call('HDEL', P .. ':task', member)
  call('ZREM', P .. ':pending:' .. queue, member)
  if to_run then
    touched[queue] = true
  else
    weigh(queue, tonumber(cost), user, -1)
  end
  return queue, cost, name, user
end

-- End a run. Return its member, queue, name and user, or nothing if it is not known.
local function stop(lease)
  local member, node = match(lease, '^(.-)@(.*)$')
  local detail = call('HGET', P .. ':lease:' .. node, member)
  if not detail then return nil end
  local queue, cost, name, user = match(detail, '^.-\t(.-)\t(.-)\t(.-)\t(.*)$')
  call('HDEL', P .. ':lease:' .. node, member)
  call('SREM', P .. ':running:' .. queue, lease)
  weigh(queue, tonumber(cost), user, -1)
  return member, queue, name, user
end
