-- blocked_queue: the jobs of a class that wait for room in a limit, one queue for each limit.
--
-- A queue is open if its first job may be tried, else closed until the limit has room or until a moment.
local blocked_queue = {}

local function forget_status(name, limit, status)
  local kind = sub(status, 1, 1)
  if kind == 'O' then call('ZREM', P .. 'open:' .. name, $blocked_head{member = sub(status, 2), limit = limit}) end
  if kind == 'T' then call('ZREM', P .. 'timed', name .. ':' .. limit) end
end

function blocked_queue.any(number) return not quiet() and call('EXISTS', P .. 'parks:' .. num(number)) == 1 end

function blocked_queue.open(number, limit)  -- let claims try its first job
  local name = num(number)
  local status = call('HGET', P .. 'parks:' .. name, limit)
  local head = call('ZRANGE', P .. 'p:' .. name .. ':' .. limit, 0, 0, 'WITHSCORES')
  if status then forget_status(name, limit, status) end
  call('ZADD', P .. 'open:' .. name, head[2], $blocked_head{member = head[1], limit = limit})
  call('HSET', P .. 'parks:' .. name, limit, 'O' .. head[1])
end

function blocked_queue.close(number, limit, open_at)  -- until a moment, or until a lease releases the limit
  local name = num(number)
  local status = call('HGET', P .. 'parks:' .. name, limit)
  if status then forget_status(name, limit, status) end
  if open_at then call('ZADD', P .. 'timed', num(open_at), name .. ':' .. limit) end
  call('HSET', P .. 'parks:' .. name, limit, open_at and 'T' or 'S')
end

function blocked_queue.add(number, member, key, limit, since, open_at)
  local name = num(number)
  not_quiet()
  call('ZADD', P .. 'p:' .. name .. ':' .. limit, key, member)
  call('SADD', P .. 'q:' .. limit, name)
  call('HSET', P .. 'parked', member, $blocked{since = since, limit = limit})
  blocked_queue.close(number, limit, open_at)
end

function blocked_queue.remove(number, member, limit)
  local name = num(number)
  local place = P .. 'p:' .. name .. ':' .. limit
  call('ZREM', place, member)
  local status = call('HGET', P .. 'parks:' .. name, limit)
  if call('EXISTS', place) == 0 then
    forget_status(name, limit, status)
    call('HDEL', P .. 'parks:' .. name, limit)
    call('SREM', P .. 'q:' .. limit, name)
  elseif status == 'O' .. member then
    blocked_queue.open(number, limit)
  end
end

function blocked_queue.release(limit)  -- open the queues that a limit has closed
  for _, name in ipairs(call('SMEMBERS', P .. 'q:' .. limit)) do
    if call('HGET', P .. 'parks:' .. name, limit) == 'S' then
      blocked_queue.open(tonumber(name), limit)
      push(tx.eligible, tonumber(name))
    end
  end
end

function blocked_queue.open_due()  -- open the queues whose moment has come
  if quiet() then return end
  local due = call('ZRANGE', P .. 'timed', '-inf', num(now), 'BYSCORE')
  for _, entry in ipairs(due) do
    local colon = string.find(entry, ':', 1, true)
    blocked_queue.open(tonumber(sub(entry, 1, colon - 1)), sub(entry, colon + 1))
  end
end

-- Take a queued job out of its queue. Return its class, its order key, whether it was delayed, and its requeue.
local function leave_queue(member, rec)
  local requeue = call('HGET', P .. 'again', member)
  local number = requeue and $requeue.class(requeue) or record.class(rec)
  local name = num(number)
  if call('ZREM', P .. 'due', member) == 1 then
    call('SREM', P .. 'late:' .. name, member)
    return number, NONE, true, requeue
  end
  local blocked, key = call('HGET', P .. 'parked', member), nil
  if blocked then
    local limit = $blocked.limit(blocked)
    key = call('ZSCORE', P .. 'p:' .. name .. ':' .. limit, member)
    blocked_queue.remove(number, member, limit)
    call('HDEL', P .. 'parked', member)
  else
    key = call('ZSCORE', P .. 'w:' .. name, member)
    call('ZREM', P .. 'w:' .. name, member)
    call('ZREM', P .. 'a:' .. name, member)
  end
  return number, key, false, requeue
end
