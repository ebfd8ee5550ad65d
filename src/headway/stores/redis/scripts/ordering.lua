-- ordering: the order key of a job that becomes eligible, and how tenants share a class.
local ordering = {}

function ordering.clock(number)  -- the virtual time of a class, or false if no tenants share it
  local clock = tx.clock[number]
  if clock == nil then
    clock = tonumber(call('HGET', P .. 'clock', num(number)) or nil) or false
    tx.clock[number] = clock
  end
  return clock
end

function ordering.share(tenant, key, member) return text(tenant) .. $share{order_key = key, member = member} end

function ordering.last(number, tenant)  -- the highest order key of the tenant's jobs that wait or run, or false
  local known = tx.last[number]
  if not known then
    known = {}
    tx.last[number] = known
  end
  local last = known[tenant]
  if last == nil then
    local from = text(tenant)
    local live = P .. 'live:' .. num(number)
    local found = call('ZRANGE', live, '(' .. from .. ':', '[' .. from, 'BYLEX', 'REV', 'LIMIT', 0, 1)
    last = found[1] and tonumber($share.order_key(sub(found[1], #from + 1))) or false
    known[tenant] = last
  end
  return last
end

function ordering.flush()  -- write the order keys that put and append have given
  for _, number in ipairs(tx.order) do
    local add, name = tx.adds[number], num(number)
    bulk('ZADD', P .. 'w:' .. name, add.places)
    if add.ages then
      bulk('ZADD', P .. 'a:' .. name, add.ages)
      bulk('ZADD', P .. 'live:' .. name, add.live)
    end
  end
  tx.adds, tx.order = {}, {}
end

local function eligible_of(member)  -- the moment from which a queued job has waited
  local requeue = call('HGET', P .. 'again', member)
  return requeue and $requeue.eligible(requeue) or record.since(record.of(member))
end

local function become_fair(number, place)  -- all jobs that wait or run in the class so far count as one tenant's
  ordering.flush()
  local name, ages, live = num(number), {}, {}
  local front = call('ZRANGE', P .. 'w:' .. name, 0, -1, 'WITHSCORES')
  for i = 1, #front, 2 do
    push(ages, eligible_of(front[i]), front[i])
    push(live, '0', ordering.share('', front[i + 1], front[i]))
  end
  for _, limit in ipairs(call('HKEYS', P .. 'parks:' .. name)) do
    local aside = call('ZRANGE', P .. 'p:' .. name .. ':' .. limit, 0, -1, 'WITHSCORES')
    for i = 1, #aside, 2 do push(live, '0', ordering.share('', aside[i + 1], aside[i])) end
  end
  local running = call('HGETALL', P .. 'lease')
  for i = 1, #running, 2 do
    local held = running[i + 1]
    if $lease.class(held) == number then
      push(live, '0', ordering.share('', $lease.order_key(held), running[i]))
      local flags = $lease.flags(held) + $lease.FAIR
      local worker, after = text_at(held, $lease.size + 1)
      call('HSET', P .. 'lease', running[i],
        $lease[..flags](held) .. $lease{flags = flags} .. text(worker) .. text('') .. sub(held, after))
    end
  end
  bulk('ZADD', P .. 'a:' .. name, ages)
  bulk('ZADD', P .. 'live:' .. name, live)
  local clock = front[2] and tonumber(front[2]) or place
  tx.clock[number], tx.last[number] = clock, nil
  call('HSET', P .. 'clock', name, num(clock))
  call('HSET', P .. 'classes', class.parts(number).name, name .. 'f')
  return clock
end

local function added(number, shared)  -- the order keys of a class that are not written yet
  local add = tx.adds[number]
  if not add then
    add = {places = {}, ages = shared and {} or nil, live = shared and {} or nil}
    tx.adds[number] = add
    push(tx.order, number)
  end
  return add
end

function ordering.append(number, member)  -- the last place, in a class that no tenants share
  local places, eligible = added(number).places, tx.eligible
  local at = #places
  places[at + 1], places[at + 2] = member, member
  eligible[#eligible + 1] = number
end

-- Give a job its order key. place: the key in a class that no tenants share; front: before all that wait; step: the
-- virtual time until the next job of the tenant.
function ordering.put(number, member, place, tenant, eligible, step, front)
  local clock = ordering.clock(number)
  if not clock and tenant then clock = become_fair(number, tonumber(place)) end
  local add, key = added(number, clock), place
  if clock then
    local sharer = tenant or ''
    local last = ordering.last(number, sharer)
    local at = clock
    if not front and last then at = math.max(clock, last + step) end
    key = num(at)
    tx.last[number][sharer] = last and math.max(last, at) or at
    push(add.ages, eligible, member)
    push(add.live, '0', ordering.share(sharer, key, member))
  end
  push(add.places, key, member)
  push(tx.eligible, number)
  return key
end

function ordering.forget(number, tenant, key, member)  -- it no longer waits or runs in the class
  if ordering.clock(number) then
    call('ZREM', P .. 'live:' .. num(number), ordering.share(tenant or '', key, member))
    if tx.last[number] then tx.last[number][tenant or ''] = nil end
  end
end

function ordering.delay(number, member, due)
  not_quiet()
  call('ZADD', P .. 'due', num(due), member)
  call('SADD', P .. 'late:' .. num(number), member)
end
