-- lines: where a job that becomes eligible is put, and how the tenants of a class come to share it.
local lines = {}

function lines.clock(number)  -- the clock of a class, or false if nobody shares it
  local clock = tx.clock[number]
  if clock == nil then
    clock = tonumber(call('HGET', P .. 'clock', num(number)) or nil) or false
    tx.clock[number] = clock
  end
  return clock
end

function lines.live(tenant, key, member) return text(tenant) .. $share{order_key = key, member = member} end

function lines.last(number, tenant)  -- the highest order key of a tenant's jobs that wait or run in a class, or false
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

function lines.flush()  -- write the places that were given
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

local function eligible_of(member)  -- since when a queued job has waited
  local back = call('HGET', P .. 'again', member)
  return back and $requeue.eligible(back) or record.since(record.of(member))
end

local function become_fair(number, place)  -- what waits or runs here already is one tenant's
  lines.flush()
  local name, ages, live = num(number), {}, {}
  local front = call('ZRANGE', P .. 'w:' .. name, 0, -1, 'WITHSCORES')
  for i = 1, #front, 2 do
    push(ages, eligible_of(front[i]), front[i])
    push(live, '0', lines.live('', front[i + 1], front[i]))
  end
  for _, park in ipairs(call('HKEYS', P .. 'parks:' .. name)) do
    local aside = call('ZRANGE', P .. 'p:' .. name .. ':' .. park, 0, -1, 'WITHSCORES')
    for i = 1, #aside, 2 do push(live, '0', lines.live('', aside[i + 1], aside[i])) end
  end
  local running = call('HGETALL', P .. 'lease')
  for i = 1, #running, 2 do
    local held = running[i + 1]
    if $lease.class(held) == number then
      push(live, '0', lines.live('', $lease.order_key(held), running[i]))
      local flags = $lease.flags(held) + $lease.FAIR  -- it was not fair, so it has no tenant yet
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

local function added(number, shared)  -- the places that were given in a class and are not written yet
  local add = tx.adds[number]
  if not add then
    add = {places = {}, ages = shared and {} or nil, live = shared and {} or nil}
    tx.adds[number] = add
    push(tx.order, number)
  end
  return add
end

function lines.append(number, member)  -- give the last place, where nobody shares
  local places, eligible = added(number).places, tx.eligible
  local at = #places
  places[at + 1], places[at + 2] = member, member
  eligible[#eligible + 1] = number
end

-- Put a job into its line. place: in a line that no tenants share; front: before all that wait; step: by how much the
-- next job of its tenant is later.
function lines.put(number, member, place, tenant, eligible, step, front)
  local clock = lines.clock(number)
  if not clock and tenant then clock = become_fair(number, tonumber(place)) end
  local add, key = added(number, clock), place
  if clock then
    local sharer = tenant or ''
    local last = lines.last(number, sharer)
    local at = clock
    if not front and last then at = math.max(clock, last + step) end
    key = num(at)
    tx.last[number][sharer] = last and math.max(last, at) or at
    push(add.ages, eligible, member)
    push(add.live, '0', lines.live(sharer, key, member))
  end
  push(add.places, key, member)
  push(tx.eligible, number)
  return key
end

function lines.forget(number, tenant, key, member)  -- it neither waits nor runs here any more
  if lines.clock(number) then
    call('ZREM', P .. 'live:' .. num(number), lines.live(tenant or '', key, member))
    if tx.last[number] then tx.last[number][tenant or ''] = nil end
  end
end

function lines.delay(number, member, due)
  stir()
  call('ZADD', P .. 'due', num(due), member)
  call('SADD', P .. 'late:' .. num(number), member)
end

-- Parks: where jobs wait for room in a limit of their own.
local parks = {}

local function unopen(name, park, status)
  local kind = sub(status, 1, 1)
  if kind == 'O' then call('ZREM', P .. 'open:' .. name, $blocked_head{member = sub(status, 2), limit = park}) end
  if kind == 'T' then call('ZREM', P .. 'timed', name .. ':' .. park) end
end

function parks.any(number) return not quiet() and call('EXISTS', P .. 'parks:' .. num(number)) == 1 end

function parks.open(number, park)  -- let it be served by its first job's place
  local name = num(number)
  local status = call('HGET', P .. 'parks:' .. name, park)
  local head = call('ZRANGE', P .. 'p:' .. name .. ':' .. park, 0, 0, 'WITHSCORES')
  if status then unopen(name, park, status) end
  call('ZADD', P .. 'open:' .. name, head[2], $blocked_head{member = head[1], limit = park})
  call('HSET', P .. 'parks:' .. name, park, 'O' .. head[1])
end

function parks.shut(number, park, open_at)  -- it has no room: until a moment, or until its key is given back
  local name = num(number)
  local status = call('HGET', P .. 'parks:' .. name, park)
  if status then unopen(name, park, status) end
  if open_at then call('ZADD', P .. 'timed', num(open_at), name .. ':' .. park) end
  call('HSET', P .. 'parks:' .. name, park, open_at and 'T' or 'S')
end

function parks.enter(number, member, key, park, since, open_at)
  local name = num(number)
  stir()
  call('ZADD', P .. 'p:' .. name .. ':' .. park, key, member)
  call('SADD', P .. 'q:' .. park, name)
  call('HSET', P .. 'parked', member, $blocked{since = since, limit = park})
  parks.shut(number, park, open_at)
end

function parks.leave(number, member, park)
  local name = num(number)
  local place = P .. 'p:' .. name .. ':' .. park
  call('ZREM', place, member)
  local status = call('HGET', P .. 'parks:' .. name, park)
  if call('EXISTS', place) == 0 then
    unopen(name, park, status)
    call('HDEL', P .. 'parks:' .. name, park)
    call('SREM', P .. 'q:' .. park, name)
  elseif status == 'O' .. member then
    parks.open(number, park)
  end
end

function parks.release(park)  -- a key was given back: what waits for it may try again
  for _, name in ipairs(call('SMEMBERS', P .. 'q:' .. park)) do
    if call('HGET', P .. 'parks:' .. name, park) == 'S' then
      parks.open(tonumber(name), park)
      push(tx.eligible, tonumber(name))
    end
  end
end

function parks.pump()  -- open those whose moment has come
  if quiet() then return end
  local due = call('ZRANGE', P .. 'timed', '-inf', num(now), 'BYSCORE')
  for _, entry in ipairs(due) do
    local colon = string.find(entry, ':', 1, true)
    parks.open(tonumber(sub(entry, 1, colon - 1)), sub(entry, colon + 1))
  end
end

-- Take a queued job from where it waits. Gives where that was: its class, order key and whether it was delayed.
local function leave_queue(member, rec)
  local back = call('HGET', P .. 'again', member)
  local number = back and $requeue.class(back) or record.class(rec)
  local name = num(number)
  if call('ZREM', P .. 'due', member) == 1 then
    call('SREM', P .. 'late:' .. name, member)
    return number, NONE, true, back
  end
  local parked, key = call('HGET', P .. 'parked', member), nil
  if parked then
    local park = $blocked.limit(parked)
    key = call('ZSCORE', P .. 'p:' .. name .. ':' .. park, member)
    parks.leave(number, member, park)
    call('HDEL', P .. 'parked', member)
  else
    key = call('ZSCORE', P .. 'w:' .. name, member)
    call('ZREM', P .. 'w:' .. name, member)
    call('ZREM', P .. 'a:' .. name, member)
  end
  return number, key, false, back
end
