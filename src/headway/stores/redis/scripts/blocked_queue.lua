-- blocked_queue: the jobs of a class that wait for room in a limit, one queue for each limit.
--
-- A queue is open if its first job may be tried, else closed until the limit has room or until a moment. A function
-- that changes queues of a class does so in a table from ``change``, and ``flush`` writes what has become of them.
local blocked_queue = {}

function blocked_queue.any(number) return not quiet() and call('EXISTS', P .. 'parks:' .. num(number)) == 1 end

function blocked_queue.change(number)
  return {
    name = num(number), limits = {}, now = {},  -- changed queues in order, and the head of each, if it is open, or
                                                -- the moment it opens, 'S' if it is closed, or false if it is empty
    heads = {}, at = 1, later = {}, later_at = 1,  -- open queues, by the order keys of their heads
    added = {}, dropped = {}, parked = {}, left = {}, places = {},
  }
end

local function place(q, limit)
  local found = q.places[limit]
  if not found then
    found = P .. 'p:' .. q.name .. ':' .. limit
    q.places[limit] = found
  end
  return found
end

local function set(q, limit, status)
  if q.now[limit] == nil then push(q.limits, limit) end
  q.now[limit], q.first = status, nil
end

local function comes_before(head, key, member)
  return head.key < key or (head.key == key and head.member < member)
end

local function head_of(q, limit)  -- or false; the jobs that were dropped are still in the queue until ``flush``
  local rank = q.dropped[limit] and #q.dropped[limit] or 0
  local found = call('ZRANGE', place(q, limit), rank, rank, 'WITHSCORES')
  return found[1] and {member = found[1], order = found[2], key = tonumber(found[2]), limit = limit} or false
end

function blocked_queue.read_open(q, most, any_again)  -- the heads of up to ``most`` open queues, with their records
  q.any_again = any_again
  local found, members = call('ZRANGE', P .. 'open:' .. q.name, 0, most - 1, 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    push(members, $blocked_head.member(found[i]))
    push(q.heads, {
      member = members[#members], order = found[i + 1], key = tonumber(found[i + 1]),
      limit = $blocked_head.limit(found[i])})
  end
  if #members == 0 then return end
  local recs, parked = call('HMGET', P .. 'job', unpack(members)), call('HMGET', P .. 'parked', unpack(members))
  local requeues = any_again and call('HMGET', P .. 'again', unpack(members)) or {}
  for i, head in ipairs(q.heads) do head.rec, head.parked, head.requeue = recs[i], parked[i], requeues[i] or false end
end

local function next_of(q, list, at)  -- the first head in a list that is still one
  local head = list[at]
  while head and q.now[head.limit] ~= nil and q.now[head.limit] ~= head do
    at = at + 1
    head = list[at]
  end
  return head, at
end

function blocked_queue.first(q, order, member)  -- the head of an open queue that comes before a job, if there is one
  local head, other = q.first, nil
  if head == nil then  -- a queue has changed
    head, q.at = next_of(q, q.heads, q.at)
    other, q.later_at = next_of(q, q.later, q.later_at)
    if other and not (head and comes_before(head, other.key, other.member)) then head = other end
    q.first = head or false
  end
  if not head or (member and not comes_before(head, tonumber(order), member)) then return nil end
  if head.rec == nil then
    head.rec, head.requeue = call('HGET', P .. 'job', head.member), false
    if q.any_again then head.requeue = call('HGET', P .. 'again', head.member) end
  end
  return head
end

function blocked_queue.since(head)  -- the moment from which a job has been blocked
  return $blocked.since(head.parked or call('HGET', P .. 'parked', head.member))
end

function blocked_queue.drop(q, head)  -- the head leaves its queue, and the next job becomes the head
  gather(q.dropped, head.limit, head.member)
  local follows, at = head_of(q, head.limit), #q.later + 1
  set(q, head.limit, follows)
  if not follows then return end
  while at > q.later_at and not comes_before(q.later[at - 1], follows.key, follows.member) do at = at - 1 end
  table.insert(q.later, at, follows)
end

function blocked_queue.close(q, limit, open_at) set(q, limit, open_at or 'S') end  -- or until a lease releases it

function blocked_queue.add(q, member, key, limit, since, open_at)
  not_quiet()
  gather(q.added, limit, key)
  push(q.added[limit], member)
  push(q.parked, member, $blocked{since = since, limit = limit})
  blocked_queue.close(q, limit, open_at)
end

function blocked_queue.flush(q)
  for limit, members in pairs(q.dropped) do bulk('ZREM', place(q, limit), members) end
  for limit, jobs in pairs(q.added) do bulk('ZADD', place(q, limit), jobs) end
  bulk('HSET', P .. 'parked', q.parked)
  bulk('HDEL', P .. 'parked', q.left)
  if #q.limits == 0 then return end
  local statuses, gone, closed, opened, untimed, timed, olds = {}, {}, {}, {}, {}, {}, {}
  local parks, open = P .. 'parks:' .. q.name, P .. 'open:' .. q.name
  each(q.limits, function(...)
    for _, old in ipairs(call('HMGET', parks, ...)) do push(olds, old) end
  end)
  for i, limit in ipairs(q.limits) do
    local old, new, kind = olds[i], q.now[limit], olds[i] and sub(olds[i], 1, 1)
    if kind == 'O' then push(closed, $blocked_head{member = sub(old, 2), limit = limit}) end
    if kind == 'T' then push(untimed, q.name .. ':' .. limit) end
    if not new then
      push(gone, limit)
    elseif new == 'S' then
      push(statuses, limit, 'S')
    elseif type(new) == 'number' then
      push(statuses, limit, 'T')
      push(timed, num(new), q.name .. ':' .. limit)
    else
      push(statuses, limit, 'O' .. new.member)
      push(opened, new.order, $blocked_head{member = new.member, limit = limit})
    end
  end
  bulk('ZREM', open, closed)
  bulk('ZADD', open, opened)
  bulk('ZREM', P .. 'timed', untimed)
  bulk('ZADD', P .. 'timed', timed)
  bulk('HDEL', parks, gone)
  bulk('HSET', parks, statuses)
end

function blocked_queue.open(number, names)  -- let claims try the first jobs of these queues
  local q = blocked_queue.change(number)
  for _, limit in ipairs(names) do set(q, limit, head_of(q, limit)) end
  blocked_queue.flush(q)
end

local function remove_blocked(number, member, limit)
  local q = blocked_queue.change(number)
  call('ZREM', place(q, limit), member)
  local head = head_of(q, limit)
  if not head or call('HGET', P .. 'parks:' .. q.name, limit) == 'O' .. member then set(q, limit, head) end
  push(q.left, member)
  blocked_queue.flush(q)
end

function blocked_queue.release(freed)  -- open the queues that limits have closed
  for number = 1, class.all() do
    local closed, at = {}, 0
    if blocked_queue.any(number) then
      each(freed, function(...)
        for _, status in ipairs(call('HMGET', P .. 'parks:' .. num(number), ...)) do
          at = at + 1
          if status == 'S' then push(closed, freed[at]) end
        end
      end)
    end
    if #closed > 0 then blocked_queue.open(number, closed) end
    for _ = 1, #closed do push(tx.eligible, number) end
  end
end

function blocked_queue.open_due()  -- open the queues whose moment has come
  if quiet() then return end
  local due, classes = {}, {}
  for _, entry in ipairs(call('ZRANGE', P .. 'timed', '-inf', num(now), 'BYSCORE')) do
    local colon = string.find(entry, ':', 1, true)
    local number = tonumber(sub(entry, 1, colon - 1))
    if not due[number] then push(classes, number) end
    gather(due, number, sub(entry, colon + 1))
  end
  for _, number in ipairs(classes) do blocked_queue.open(number, due[number]) end
end

-- Take a queued job out of its queue. Return its class, its order key, whether it was delayed or held, its requeue, and
-- whether it was held.
local function leave_queue(member, rec)
  local requeue = call('HGET', P .. 'again', member)
  local number = requeue and $requeue.class(requeue) or record.class(rec)
  local name = num(number)
  if band(record.flags(rec), $job.WAITS) ~= 0 and call('SREM', P .. 'held:' .. name, member) == 1 then
    return number, NONE, true, requeue, true
  end
  if call('ZREM', P .. 'due', member) == 1 then
    call('SREM', P .. 'late:' .. name, member)
    return number, NONE, true, requeue
  end
  local blocked, key = call('HGET', P .. 'parked', member), nil
  if blocked then
    local limit = $blocked.limit(blocked)
    key = call('ZSCORE', P .. 'p:' .. name .. ':' .. limit, member)
    remove_blocked(number, member, limit)
  else
    key = call('ZSCORE', P .. 'w:' .. name, member)
    call('ZREM', P .. 'w:' .. name, member)
    call('ZREM', P .. 'a:' .. name, member)
  end
  return number, key, false, requeue
end
