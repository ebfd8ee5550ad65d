-- diagnose: all that decides when jobs start, for `why` and estimates.

-- Return the snapshot, workers (blob, state, started, beat, deadline, leases), what executes (member, job, lease,
-- class) and the parts of the rules (name, version and body).
local function diagnose()
  local executing, held, parts = {}, call('HGETALL', P .. 'lease'), {}
  for i = 1, #held, 2 do
    local member, held_as = held[i], held[i + 1]
    local rec = call('HGET', P .. 'job', member) or ''
    push(executing, {member, rec, held_as, class.parts($lease.class(held_as)).name})
  end
  table.sort(executing, function(a, b) return a[1] < b[1] end)
  local names = call('HKEYS', P .. 'doc:rules')
  table.sort(names, before)
  for _, name in ipairs(names) do push(parts, name, call('HGET', P .. 'doc:rules', name)) end
  return {snapshot(), workers_now(), executing, parts}
end

local function diagnose_now(keys, args)
  begin(keys, args)
  return {now, diagnose()}
end

-- Count the jobs of a tenant in a queue of a class, up to a bound. stop: the end of its entries among all live ones.
local function count_own(name, queue, from, stop, most)
  local own, at = 0, '[' .. from
  while own < most do
    local some = call('ZRANGE', P .. 'live:' .. name, at, stop, 'BYLEX', 'LIMIT', 0, 200)
    for _, entry in ipairs(some) do
      if call('ZSCORE', queue, $share.member(sub(entry, #from + 1))) then own = own + 1 end
    end
    if #some < 200 then break end
    at = '(' .. some[#some]
  end
  return math.min(own, most)
end

-- Return the limits of a job: key, used or '', next start or '', ...
local function limit_views(rec)
  local views, tenant, own = {}, record.sharing(rec, record.flags(rec))
  for _, entry in ipairs(rule_index.keys(rec, tenant, own)) do
    push(views, entry.key)
    push(views, entry.most and num(call('SCARD', entry.set)) or '')
    push(views, entry.interval and num(limits.next_start_at(entry)) or '')
  end
  return views
end

-- diagnose_job: one job, and the same.
-- args     id, how many jobs ahead to count, how many wait intervals to return
-- returns  now, pieces or false, diagnosis, whether tenants share its class, jobs ahead, those of its tenant, limits
--          (key, used or '', next start or '', ...), wait intervals of its class, upstreams if it is held
local function diagnose_job(keys, args)
  begin(keys, args)
  local member = call('HGET', P .. 'ids', args[2])
  if not member then return {now, false} end
  local whole = pieces(member)
  local seen, most = diagnose(), tonumber(args[3])
  local rec, number = whole[2], class.number(whole[10])
  local name, fair = num(number), ordering.clock(number) and 1 or 0
  if whole[3] ~= 'Q' or whole[6] ~= '' then
    local intervals = call('LRANGE', P .. 'stretch:' .. name, -tonumber(args[4]), -1)
    local upstreams = whole[6] == 'held' and batches.upstreams_of(member, false) or {}
    return {now, whole, seen, fair, 0, 0, {}, intervals, upstreams}
  end
  local limit = whole[7] ~= '' and $blocked.limit(whole[7])
  local place = limit and P .. 'p:' .. name .. ':' .. limit or P .. 'w:' .. name
  local ahead, own, extras = call('ZRANK', place, member) or 0, 0, record.extras(rec)
  if fair == 1 then
    local from = text(extras.tenant or '')
    local stop = '(' .. from .. $share{order_key = call('ZSCORE', place, member), member = member}
    own = count_own(name, place, from, stop, most)
  end
  return {now, whole, seen, fair, math.min(ahead, most), own, limit_views(rec), {}, {}}
end

-- preview: what a submit of one job would do. It keeps nothing.
-- args     how many jobs ahead to count, then as for submit
-- returns  now, then the answer of submit in a conflict; known and the id of the job that stands for it; or
--          new, diagnosis, whether tenants share its class then, jobs ahead, those of its tenant, limits
local function preview(keys, args)
  begin(keys, args)
  local jobs, most = read_jobs(args, 3), tonumber(args[2])
  local conflict = find_fresh(jobs)
  if conflict then return {now, conflict[1], conflict[3]} end
  if #jobs.fresh == 0 then return {now, 'known', jobs.stands[1] or jobs.ids[1]} end
  local whole = $job{submitted = now15, class = 0} .. args[jobs.first + 1]
  local extras, number = jobs.extras[1] or {}, class.known(jobs.names[1])
  local tenant, clock, ahead, own = extras.tenant, number and ordering.clock(number), 0, 0
  local is_due = not extras.due or math.max(extras.due, now + extras.delay) <= now
  local fair = clock or tenant and is_due
  if number and is_due then
    local queue = P .. 'w:' .. num(number)
    if clock then
      local sharer = tenant or ''
      local last = ordering.last(number, sharer)
      local key = last and math.max(clock, last + rule_index.step(record.task(whole), sharer)) or clock
      local behind = call('ZRANGE', queue, '(' .. num(key), '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
      ahead = behind and call('ZRANK', queue, behind) or call('ZCARD', queue)
      own = count_own(num(number), queue, text(sharer), '(' .. text(sharer) .. ':', most)
    else  -- a class that becomes fair starts its clock at the first waiting job, which keeps its place
      ahead = math.min(call('ZCARD', queue), tenant and 1 or most)
    end
  end
  return {now, 'new', diagnose(), fair and 1 or 0, math.min(ahead, most), own, limit_views(whole)}
end

-- waiting_of: queued jobs of a tenant.
-- args     tenant
-- returns  now, then for each class with such jobs: its text, how many, since when the first waits
local function waiting_of(keys, args)
  begin(keys, args)
  local tenant, from, found, running, runs = args[2], text(args[2]), {now}, {}, {}
  local held = call('HGETALL', P .. 'lease')
  for i = 1, #held, 2 do
    if lease.rest(held[i + 1]).tenant == tenant then
      local number = $lease.class(held[i + 1])
      running[held[i]], runs[number] = true, (runs[number] or 0) + 1
    end
  end
  for number = 1, class.all() do
    local live, busy = P .. 'live:' .. num(number), runs[number] or 0
    local waiting = ordering.clock(number) and call('ZLEXCOUNT', live, '[' .. from, '(' .. from .. ':') - busy or 0
    if waiting > 0 then
      for _, entry in ipairs(call('ZRANGE', live, '[' .. from, '(' .. from .. ':', 'BYLEX', 'LIMIT', 0, busy + 1)) do
        local member = $share.member(sub(entry, #from + 1))
        if not running[member] then
          push(found, class.parts(number).name, num(waiting))
          push(found, eligible_of(member))
          break
        end
      end
    end
  end
  return found
end

-- breakdown: jobs by tenant, and those that wait for limits.
-- args     how many tenants of each class and how many blocked queues at most, how many jobs to count in each
-- returns  now, tenants (name, waiting, since when the first waits, ...), tenants that run (name of each job),
--          blocked queues (limit, lane, waiting, moment it opens or '', ...)
local function breakdown(keys, args)
  begin(keys, args)
  local most, bound, tenants, runs, blocked = tonumber(args[2]), tonumber(args[3]), {}, {}, {}
  local running, busy, held = {}, {}, call('HGETALL', P .. 'lease')
  for i = 1, #held, 2 do
    local tenant = lease.rest(held[i + 1]).tenant
    if tenant and tenant ~= '' then
      local mine = num($lease.class(held[i + 1])) .. ':' .. tenant
      push(runs, tenant)
      running[held[i]], busy[mine] = true, (busy[mine] or 0) + 1
    end
  end
  for number = 1, class.all() do
    local name, live = num(number), P .. 'live:' .. num(number)
    local at, found = '(' .. text('') .. ':', 0
    while ordering.clock(number) and found < most do
      local first = call('ZRANGE', live, at, '+', 'BYLEX', 'LIMIT', 0, 1)[1]
      if not first then break end
      local tenant = text_at(first, 1)
      local from, runs_here = text(tenant), busy[name .. ':' .. tenant] or 0
      local waiting = call('ZLEXCOUNT', live, '[' .. from, '(' .. from .. ':') - runs_here
      if waiting > 0 then
        found = found + 1
        local some = call('ZRANGE', live, '[' .. from, '(' .. from .. ':', 'BYLEX', 'LIMIT', 0, runs_here + 1)
        for _, entry in ipairs(some) do
          local member = $share.member(sub(entry, #from + 1))
          if not running[member] then
            push(tenants, tenant, num(math.min(waiting, bound)))
            push(tenants, eligible_of(member))
            break
          end
        end
      end
      at = '(' .. from .. ':'
    end
    for _, limit in ipairs(call('HKEYS', P .. 'parks:' .. name)) do
      push(blocked, limit, class.parts(number).lane)
      push(blocked, num(math.min(bound, call('ZCARD', P .. 'p:' .. name .. ':' .. limit))))
      push(blocked, call('ZSCORE', P .. 'timed', name .. ':' .. limit) or '')
    end
  end
  return {now, tenants, runs, blocked}
end

-- record_wait_reasons: add to the wait intervals of each class, unless another worker has just done so.
-- args     ms between two samples, longest gap in ms, then class and reason of each
local function record_wait_reasons(keys, args)
  begin(keys, args)
  local last = tonumber(call('HGET', P .. 'meta', 'witnessed') or nil)
  if last and last > now - tonumber(args[2]) then return 0 end
  call('HSET', P .. 'meta', 'witnessed', num(now))
  for i = 4, #args, 2 do
    local key = P .. 'stretch:' .. num(class.number(args[i]))
    local entry = call('LINDEX', key, -1)
    local until_at = entry and tonumber($wait_interval.ended(entry))
    if not entry or until_at + tonumber(args[3]) < now then
      call('RPUSH', key, $wait_interval{started = now15, ended = now15, reason = args[i + 1]})
    elseif $wait_interval.reason(entry) == args[i + 1] then
      call('LSET', key, -1, $wait_interval[..ended](entry) .. $wait_interval{ended = now15, reason = args[i + 1]})
    else
      local started = $wait_interval.ended(entry)
      call('RPUSH', key, $wait_interval{started = started, ended = now15, reason = args[i + 1]})
    end
  end
  return 1
end
