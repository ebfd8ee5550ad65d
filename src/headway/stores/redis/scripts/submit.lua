-- submit: store all jobs, or none.
-- args     number of classes, their texts, the number of each job's class in that list (2 bytes a job), then a record a
--          job, from its flags on
-- returns  a number if all are kept under their own ids, or were before: 1 if a worker waits or a client watches, else
--          0; or a list
--            dup, then index and id of each job that another stands in for
--            conflict, index, what
-- holds    a job can be found by its id, unique key and idempotency key as soon as it can be claimed
local function submit_one(name, rec)  -- the usual case of a single new job; return false in any other
  local id, number = record.new_id(rec), class.known(name)
  if not number or tx.clock[number] ~= false then return false end
  local member = member_of(call('HINCRBY', P .. 'meta', 'seq', 1))
  if call('HSETNX', P .. 'ids', id, member) == 0 then
    call('HINCRBY', P .. 'meta', 'seq', -1)
    return false
  end
  call('HSET', P .. 'job', member, $job{submitted = now15, class = number} .. rec)
  call('ZADD', P .. 'w:' .. num(number), member, member)
  tx.eligible, tx.counts.submitted, tx.changed, tx.alone = {number}, 1, {id}, true
  settle()
  return true
end

local function submit(keys, args)
  begin(keys, args, true)
  tx.listeners = call('EXISTS', P .. 'wait', P .. 'watched', P .. 'in') > 0
  if tx.listeners and call('EXISTS', P .. 'in') == 1 then apply_deferred() end
  if #args == 5 and args[2] == '1' and $new_job.flags(args[5]) == 0 and submit_one(args[3], args[5]) then
    return tx.listeners and 1 or 0
  end
  local kinds, names, first = tonumber(args[2]), {}, nil
  for i = 1, kinds do names[i] = args[2 + i] end
  first = 3 + kinds
  local kind_of, blank = args[first], $job{submitted = ZERO, class = 0}
  local n, ids = #args - first, {}
  for i = 1, n do
    ids[i] = record.new_id(args[first + i])
  end
  local known = call('HMGET', P .. 'ids', unpack(ids))
  local seen, scopes, uniques, fresh, extras_of, answer = {}, {}, {}, {}, {}, {'dup'}
  local answered = ids
  for i = 1, n do
    local id, flags = ids[i], $new_job.flags(args[first + i])
    local twin = known[i] and (call('HGET', P .. 'job', known[i]) or '') or seen[id] and blank .. args[first + seen[id]]
    if twin then
      if record.tail(twin) ~= record.tail(blank .. args[first + i]) then
        return {'conflict', num(i - 1), 'job id'}
      end
    else
      local extras, stands = nil, nil
      if flags ~= 0 then
        extras = record.extras(blank .. args[first + i])
        extras_of[i] = extras
        if extras.key then
          local scope = text(extras.tenant or '') .. extras.key
          local kept = scopes[scope]
          if not kept then
            kept = call('HGET', P .. 'idem', scope)
            if kept and tonumber($idempotency.expires(kept)) <= now then kept = nil end
          end
          if kept then
            local digest, after = text_at(kept, $idempotency.size + 1)
            if digest ~= extras.digest then return {'conflict', num(i - 1), 'idempotency key'} end
            stands = sub(kept, after)
          end
        end
        if not stands and extras.unique then
          stands = uniques[extras.unique]
          if not stands then
            local member = call('HGET', P .. 'unique', extras.unique)
            stands = member and record.id(record.of(member))
          end
        end
        if not stands then
          if extras.key then
            local scope = text(extras.tenant or '') .. extras.key
            scopes[scope] = $idempotency{expires = fmt('%015d', now + extras.key_ms)} .. text(extras.digest) .. id
          end
          if extras.unique then uniques[extras.unique] = id end
        end
      end
      if stands then
        push(answer, num(i - 1), stands)
        if answered == ids then answered = {unpack(ids)} end
        answered[i] = stands
      else
        push(fresh, i)
        if flags < $job.TRANSIENT then seen[id] = i end
      end
    end
  end
  if #fresh > 0 then
    local seq = call('HINCRBY', P .. 'meta', 'seq', #fresh) - #fresh
    local numbers, links, jobs, members, wholes = {}, {}, {}, {}, {}
    for k, i in ipairs(fresh) do
      local rec = args[first + i]
      local kind = i2(kind_of, 2 * i - 1)
      if not numbers[kind] then
        local number = class.number(names[kind])
        numbers[kind] = {number, $job{class = number}}
      end
      local member, whole = member_of(seq + k), $job{submitted = now15, class = bytes numbers[kind][2]} .. rec
      members[k], wholes[k] = member, whole
      if $new_job.flags(rec) < $job.TRANSIENT then
        local at = #links
        links[at + 1], links[at + 2] = ids[i], member
        jobs[at + 1], jobs[at + 2] = member, whole
      end
    end
    bulk('HSET', P .. 'job', jobs)
    bulk('HSET', P .. 'ids', links)
    for k, i in ipairs(fresh) do
      local member, extras = members[k], extras_of[i]
      local number = numbers[i2(kind_of, 2 * i - 1)][1]
      if not extras and not ordering.clock(number) then
        ordering.append(number, member)
      elseif $new_job.flags(args[first + i]) >= $job.TRANSIENT then
        call('RPUSH', P .. 'tr:' .. num(number), $transient{member = member, job = wholes[k]})
        push(tx.eligible, number)
      else
        local due = 0
        if extras then
          if extras.due then due = math.max(extras.due, now + extras.delay) end
          if extras.key then
            local scope = text(extras.tenant or '') .. extras.key
            call('HSET', P .. 'idem', scope, scopes[scope])
            call('ZADD', P .. 'idem_until', num(now + extras.key_ms), scope)
          end
          if extras.unique then call('HSET', P .. 'unique', extras.unique, member) end
          if extras.expires_ms then call('ZADD', P .. 'expiry', num(now + extras.expires_ms), member) end
        end
        if due > now then
          ordering.delay(number, member, due)
        else
          local tenant, step = extras and extras.tenant, 0
          if tenant or ordering.clock(number) then step = rule_index.step(record.task(wholes[k]), tenant or '') end
          ordering.put(number, member, member, tenant, now15, step)
        end
      end
    end
    ordering.flush()  -- last, so that a job can be claimed only when it is complete
    count('submitted', #fresh)
    tx.changed, tx.alone = answered, #fresh == 1
  end
  settle()
  return #answer > 1 and answer or tx.listeners and 1 or 0
end
