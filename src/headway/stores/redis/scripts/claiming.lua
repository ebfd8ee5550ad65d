-- claiming: leases by a plan, every cap checked. Records are read and leases written before a job leaves its line.
local claim = {}

function claim.give(out, member, rec, held)  -- into what an exchange answers; a fresh lease follows from the rest
  local n = out.n + 1
  out.n, out.members[n], out.records[n] = n, member, rec
  if held then push(out.held, num(n - 1), held) end
end

local function transient(number, want, into)  -- from the list, but for tasks that are paused
  local key, taken, tasks = P .. 'tr:' .. num(number), 0, book.now().tasks
  local paused = next(tasks) ~= nil
  local entries = call('LRANGE', key, 0, paused and -1 or want - 1)
  for _, entry in ipairs(entries) do
    if taken == want then break end
    if not paused or not tasks[record.task(sub(entry, 17))] then
      claim.give(into, sub(entry, 1, 16), sub(entry, 17))
      if paused then call('LREM', key, 1, entry) end
      taken = taken + 1
    end
  end
  if not paused and taken > 0 then call('LTRIM', key, taken, -1) end
  return taken
end

local function park_reason(park)
  if sub(park, 1, 8) == '=paused:' then return 'paused' end
  local rule = book.now().limits[string.match(park, '^[^=]*')]
  return rule and not rule.most and 'rate' or 'limit'
end

-- Lease up to want jobs of a class into out. Expired ones are cancelled on the way, and those that their own limits hold
-- back are put aside. Gives how many were leased, and whether it stopped for having passed over too many.
function claim.take(take, want, worker, token, out)
  local number, name = take.number, num(take.number)
  local key = class.parts(number)
  if not key.persist then return transient(number, want, out), false end
  local rules, line = book.now(), P .. 'w:' .. num(number)
  local clock, has_parks, climbs = lines.clock(number), parks.any(number), caps.on_ladder(key.rung)
  local fresh, asker = token .. '\0\0\0\1\0\1\0\0' .. now15, text(worker)
  local class4, plain = pack('>I4', number), '\0\0\0\0\0\0'
  local usual = plain .. '\0' .. asker
  local front, scores, recs, backs, at, base = {}, {}, {}, {}, 0, 0
  local leases, mine, aged, again, got, passed, more, highest = {}, {}, {}, {}, 0, 0, false, clock
  while got < want do
    if at == #front then  -- the next stretch of the line
      base = base + at
      at = 0
      if clock then
        local found = call('ZRANGE', line, base, base + want - got - 1, 'WITHSCORES')
        front, scores = {}, {}
        for i = 1, #found, 2 do push(front, found[i]); push(scores, found[i + 1]) end
      else
        front = call('ZRANGE', line, base, base + want - got - 1)
        scores = front
      end
      if #front > 0 then
        recs = call('HMGET', P .. 'job', unpack(front))
        backs = not quiet() and call('EXISTS', P .. 'again') == 1 and call('HMGET', P .. 'again', unpack(front)) or {}
      end
    end
    local member, order, rec, back, park, since = front[at + 1], scores[at + 1], recs[at + 1], backs[at + 1], nil, nil
    if back and not clock then order = sub(back, 59, 74) end
    if has_parks then
      local open = call('ZRANGE', P .. 'open:' .. name, 0, 0, 'WITHSCORES')
      if open[1] then
        local other = sub(open[1], 1, 16)
        local a, b = tonumber(open[2]), member and tonumber(order)
        if not member or a < b or (a == b and other < member) then
          member, order, park = other, open[2], sub(open[1], 17)
          rec, back = call('HGET', P .. 'job', member), call('HGET', P .. 'again', member)
          since = call('HGET', P .. 'parked', member)
        end
      end
    end
    if not member then break end
    if not rec then  -- no record, no lease: it is dropped from its line
      if park then parks.leave(number, member, park) else at = at + 1 end
    else
      local eligible = back and sub(back, 25, 39) or record.since(rec)
      if take.until_at and tonumber(eligible) > take.until_at then break end
      if passed == PASSED then
        more = true
        break
      end
      local flags, extras, full, full_at, assigned, keys = record.flags(rec), nil, nil, nil, '', nil
      if flags ~= 0 then extras = record.extras(rec) end
      if extras and extras.expires_ms and not (back and byte(back, 81) % 2 == 1)
        and tonumber(record.since(rec)) + extras.expires_ms <= now then
        ending.cancel_queued(member, rec, 'expired')
        if not park then base = base - 1; at = at + 1 end
        push(tx.changed, record.id(rec))
        passed = passed + 1
      else
        local fits = true
        if climbs then fits, assigned = caps.fit(key.rung) end
        if not fits then break end
        if rules.binds or (extras and extras.limits) then
          keys = book.keys(record.task(rec), extras and extras.tenant, extras and extras.limits)
          full, full_at = caps.full(keys)
        end
        if full then
          if park == full then
            parks.shut(number, park, full_at)
          else
            local waited = park and sub(since, 1, 15) or now15
            if park then
              parks.leave(number, member, park)
            else
              at = at + 1
              if clock then call('ZREM', P .. 'a:' .. name, member) end
            end
            parks.enter(number, member, order, full, waited, full_at)
            has_parks = true
          end
          passed = passed + 1
        else
          local bits, tail, head = extras and extras.unique and 1 or 0, asker, fresh
          if back then
            head = token .. pack('>I4I2I2', i4(back, 17) + 1, math.min(i2(back, 21) + 1, 65535), i2(back, 23)) .. now15
            if byte(back, 81) % 2 == 1 then bits = bits + 8 end
            push(again, member)
          end
          if clock then
            bits, tail = bits + 2, tail .. text(extras and extras.tenant or '')
          end
          local held = keys and caps.hold(member, keys)
          if keys then caps.start(keys) end
          if park or assigned ~= '' or (held and #held > 0) then
            bits = bits + 4
            local waited = park and num(now - tonumber(sub(since, 1, 15))) or ''
            tail = tail .. text(assigned) .. text(park and park_reason(park) or '') .. text(waited)
            for _, limit in ipairs(held or {}) do tail = tail .. text(limit) end
          end
          local held_as
          if bits == 0 and not back then
            held_as = head .. eligible .. class4 .. order .. usual
          else
            held_as = head .. eligible .. class4 .. order .. (back and sub(back, 75, 80) or plain) .. string.char(bits) .. tail
          end
          local n = #mine + 1
          mine[n], leases[2 * n - 1], leases[2 * n] = member, member, held_as
          claim.give(out, member, rec, (back or bits > 3) and held_as)
          got = got + 1
          if clock and tonumber(order) > highest then highest = tonumber(order) end
          if climbs then caps.assign(assigned) end
          if park then
            call('HSET', P .. 'lease', member, held_as)
            parks.leave(number, member, park)
            call('HDEL', P .. 'parked', member)
          else
            at = at + 1
            if clock then push(aged, member) end
          end
        end
      end
    end
  end
  bulk('HSET', P .. 'lease', leases)
  bulk('SADD', P .. 'l:' .. worker, mine)
  bulk('HDEL', P .. 'again', again)
  if clock and highest > clock then
    call('HSET', P .. 'clock', name, num(highest))
    tx.clock[number] = highest
  end
  bulk('ZREM', P .. 'a:' .. name, aged)
  if base + at > 0 then call('ZREMRANGEBYRANK', line, 0, base + at - 1) end  -- last: nothing is popped before it is kept
  return got, more
end

local function class_of(member, rec)  -- the class of a delayed job, also if its record does not tell
  local number = record.class(rec)
  if call('SISMEMBER', P .. 'late:' .. num(number), member) == 1 then return number end
  for other = 1, class.all() do
    if call('SISMEMBER', P .. 'late:' .. num(other), member) == 1 then return other end
  end
  return number
end

-- Make a bounded batch of due jobs eligible.
function claim.pump()
  if quiet() then return end
  local due = call('ZRANGE', P .. 'due', '-inf', num(now), 'BYSCORE', 'LIMIT', 0, PUMPED)
  for _, member in ipairs(due) do
    local rec, back = record.of(member), call('HGET', P .. 'again', member)
    if rec then
      local number = back and i4(back, 55) or class_of(member, rec)
      local extras, seq = record.extras(rec), call('HINCRBY', P .. 'meta', 'seq', 1)
      local step = book.step(record.task(rec), extras.tenant or '')
      local key = lines.put(number, member, member_of(seq), extras.tenant, now15, step)
      if back then
        back = sub(back, 1, 24) .. now15 .. ZERO .. sub(back, 55, 58) .. key .. sub(back, 75)
      else
        back = back_of(NONE, 0, 0, 0, now, 0, number, key, 0, 0, '')
      end
      call('HSET', P .. 'again', member, back)
      call('SREM', P .. 'late:' .. num(number), member)
    end
  end
  lines.flush()
  if #due > 0 then call('ZREM', P .. 'due', unpack(due)) end
end
