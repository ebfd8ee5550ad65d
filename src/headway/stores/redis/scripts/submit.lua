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

-- Read jobs from the arguments: the number of classes is at this place. ids are those of the jobs in order.
local function read_jobs(args, at)
  local kinds, names = tonumber(args[at]), {}
  for i = 1, kinds do names[i] = args[at + i] end
  local first = at + 1 + kinds
  local jobs = {args = args, names = names, first = first, kind_of = args[first], n = #args - first, ids = {}}
  for i = 1, jobs.n do jobs.ids[i] = record.new_id(args[first + i]) end
  return jobs
end

-- Find the jobs that are new. fresh: their places; stands: by place, the id of a job that stands in for another one.
-- Return the answer in a conflict.
local function find_fresh(jobs)
  local args, first, ids, blank = jobs.args, jobs.first, jobs.ids, $job{submitted = ZERO, class = 0}
  local known, seen, uniques = members_of(ids), {}, {}
  local scopes, fresh, extras_of, stands_for = {}, {}, {}, {}
  for i = 1, jobs.n do
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
        stands_for[i] = stands
      else
        push(fresh, i)
        if flags < $job.TRANSIENT then seen[id] = i end
      end
    end
  end
  jobs.known, jobs.fresh, jobs.extras, jobs.scopes, jobs.stands = known, fresh, extras_of, scopes, stands_for
  return nil
end

-- Store the new jobs. marked: by place, the record of a job of a graph with its marks; held: by place, whether it is
-- held. The caller writes their order keys last, so that a job can be claimed only when it is complete.
local function store_jobs(jobs, marked, held)
  local args, first, kind_of, ids, fresh = jobs.args, jobs.first, jobs.kind_of, jobs.ids, jobs.fresh
  local seq = call('HINCRBY', P .. 'meta', 'seq', #fresh) - #fresh
  local numbers, links, records, members, wholes, holds = {}, {}, {}, {}, {}, {}
  for k, i in ipairs(fresh) do
    local rec = marked and marked[i] or args[first + i]
    local kind = i2(kind_of, 2 * i - 1)
    if not numbers[kind] then
      local number = class.number(jobs.names[kind])
      numbers[kind] = {number, $job{class = number}}
    end
    local member, whole = member_of(seq + k), $job{submitted = now15, class = bytes numbers[kind][2]} .. rec
    members[k], wholes[k] = member, whole
    if $new_job.flags(rec) < $job.TRANSIENT then
      local at = #links
      links[at + 1], links[at + 2] = ids[i], member
      records[at + 1], records[at + 2] = member, whole
    end
  end
  bulk('HSET', P .. 'job', records)
  bulk('HSET', P .. 'ids', links)
  for k, i in ipairs(fresh) do
    local member, extras = members[k], jobs.extras[i]
    local number = numbers[i2(kind_of, 2 * i - 1)][1]
    local is_held = held and held[i]
    if not extras and not is_held and not ordering.clock(number) then
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
          call('HSET', P .. 'idem', scope, jobs.scopes[scope])
          call('ZADD', P .. 'idem_until', num(now + extras.key_ms), scope)
        end
        if extras.unique then call('HSET', P .. 'unique', extras.unique, member) end
        if extras.expires_ms then call('ZADD', P .. 'expiry', num(now + extras.expires_ms), member) end
      end
      if is_held then
        gather(holds, number, member)
      elseif due > now then
        ordering.delay(number, member, due)
      else
        local tenant, step = extras and extras.tenant, 0
        if tenant or ordering.clock(number) then step = rule_index.step(record.task(wholes[k]), tenant or '') end
        ordering.put(number, member, member, tenant, now15, step)
      end
    end
  end
  for number, some in pairs(holds) do bulk('SADD', P .. 'held:' .. num(number), some) end
  count('submitted', #fresh)
  return members
end

local function answer_of(jobs, answer)  -- add index and id of each job that another stands in for
  for i = 1, jobs.n do
    if jobs.stands[i] then push(answer, num(i - 1), jobs.stands[i]) end
  end
  return answer
end

local function answered_ids(jobs)
  if next(jobs.stands) == nil then return jobs.ids end
  local ids = {}
  for i = 1, jobs.n do ids[i] = jobs.stands[i] or jobs.ids[i] end
  return ids
end

local function submit(keys, args)
  begin(keys, args, true)
  tx.listeners = call('EXISTS', P .. 'wait', P .. 'watched', P .. 'in') > 0
  if tx.listeners and call('EXISTS', P .. 'in') == 1 then apply_deferred() end
  if #args == 5 and args[2] == '1' and $new_job.flags(args[5]) == 0 and submit_one(args[3], args[5]) then
    return tx.listeners and 1 or 0
  end
  local jobs = read_jobs(args, 2)
  local conflict = find_fresh(jobs)
  if conflict then return conflict end
  if #jobs.fresh > 0 then
    store_jobs(jobs)
    ordering.flush()
    tx.changed, tx.alone = answered_ids(jobs), #jobs.fresh == 1
  end
  settle()
  return next(jobs.stands) ~= nil and answer_of(jobs, {'dup'}) or tx.listeners and 1 or 0
end
