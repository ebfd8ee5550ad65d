-- finish: every way a job leaves a state.
function finish.before(out)  -- the lease or requeue that a job had when it ended, or ''
  return sub(out, $outcome.size + 1, $outcome.size + $outcome.length(out))
end

function finish.mark_for_archive(members)  -- so that prune keeps them until the archiver has read them
  if #members == 0 or quiet() or call('EXISTS', P .. 'archive') == 0 then return end
  local entries = {}
  for _, member in ipairs(members) do push(entries, now15, member) end
  bulk('ZADD', P .. 'arch', entries)
end

local function keep(member, rec, state, out)  -- write how a job ended
  call('HSET', P .. 'out', member, out)
  if state ~= 'C' then
    call('ZADD', P .. 'bad:' .. state, num(tonumber(member) - BASE), member)
    call('ZADD', P .. 'old:' .. state, now15, member)
    finish.mark_for_archive({member})
  end
  local flags = record.flags(rec)
  if flags ~= 0 then
    local extras = record.extras(rec)
    if extras.unique then call('HDEL', P .. 'unique', extras.unique) end
    if band(flags, $job.SOURCE) ~= 0 then workflow.source_ended(member, state) end
    if extras.batch then workflow.member_ended(extras.batch, state, 1) end
  end
  count(STATES[state], 1)
end

function finish.cancel_queued(member, rec, reason)
  local number, key, delayed, requeue, held = leave_queue(member, rec)
  if held then
    local batch = record.extras(rec).batch
    if batch then workflow.count(batch, 'held', -1) end
  end
  if not delayed then ordering.forget(number, record.extras(rec).tenant, key, member) end
  local what = requeue or ''
  local kind = requeue and 'Q' or delayed and '~' or '-'
  keep(member, rec, 'X', $outcome{state = 'X', finished = now15, kind = kind, length = #what} .. what .. reason)
  call('HDEL', P .. 'again', member)
end

-- Move a queued job to another lane ('' for its own), or let a delayed one run now.
function finish.reschedule(member, rec, lane, is_due)
  local requeue, due = call('HGET', P .. 'again', member), call('ZSCORE', P .. 'due', member)
  local from = requeue and $requeue.class(requeue) or record.class(rec)
  if band(record.flags(rec), $job.WAITS) ~= 0 and call('SISMEMBER', P .. 'held:' .. num(from), member) == 1 then
    return  -- it waits for other jobs
  end
  local key, to = class.parts(from), from
  if lane ~= '' and lane ~= key.lane then
    to = class.number(concat({lane, key.rung, '1', unpack(key.needs)}, '\0'))
  end
  if to == from and not (due and is_due) then return end
  local _, order, delayed = leave_queue(member, rec)
  local extras, eligible, due_at, place = record.extras(rec), ZERO, ZERO, NONE
  if not delayed then ordering.forget(from, extras.tenant, order, member) end
  if delayed and not is_due then
    due_at = fmt('%015d', tonumber(due))
    ordering.delay(to, member, tonumber(due))
  else
    local seq, step = call('HINCRBY', P .. 'meta', 'seq', 1), rule_index.step(record.task(rec), extras.tenant or '')
    eligible = now15
    place = ordering.put(to, member, member_of(seq), extras.tenant, now15, step)
    ordering.flush()
  end
  not_quiet()
  local moved = $requeue{eligible = eligible, due = due_at, class = to, order_key = place}
  if requeue then
    moved = $requeue[..eligible](requeue) .. moved .. $requeue[timeout..](requeue)
  else
    moved = $requeue{token = NONE, epoch = 0, attempts = 0, crashes = 0} .. moved .. $requeue{timeout = 0, flags = 0}
  end
  call('HSET', P .. 'again', member, moved)
end

function finish.cancel(member, rec, held, reason)  -- end a queued job; held: ask the worker of this lease to stop
  if not held then
    finish.cancel_queued(member, rec, reason)
  elseif call('HSETNX', P .. 'cancel', member, now15) == 1 then
    not_quiet()
    notify(lease.rest(held).worker .. '.keeper')
  end
end

function finish.class_before(rec, out)  -- the class and the epoch of a job when it ended
  local what = finish.before(out)
  if #what == 0 then return record.class(rec), 0 end
  return $lease.class(what), $lease.epoch(what)  -- at the same place in a requeue
end

function finish.reset(member, extras, out)  -- forget how a job ended, after it is queued again
  call('ZREM', P .. 'expiry', member)
  if extras.unique then call('HSET', P .. 'unique', extras.unique, member) end
  local state = $outcome.state(out)
  if state == 'C' then
    call('ZREM', P .. 'kept', member)
  else
    call('ZREM', P .. 'bad:' .. state, member)
    call('ZREM', P .. 'old:' .. state, member)
  end
  call('ZREM', P .. 'arch', member)
  call('HDEL', P .. 'out', member)
end

function finish.retry(member, rec, out, alone)  -- queue an ended job again, as an operator asked
  local number, epoch = finish.class_before(rec, out)
  local extras, seq = record.extras(rec), call('HINCRBY', P .. 'meta', 'seq', 1)
  local step = rule_index.step(record.task(rec), extras.tenant or '')
  local key = ordering.put(number, member, member_of(seq), extras.tenant, now15, step)
  not_quiet()
  call('HSET', P .. 'again', member, $requeue{
    token = NONE, epoch = epoch, attempts = 0, crashes = 0, eligible = now15, due = ZERO, class = number,
    order_key = key, timeout = 0, flags = $requeue.NEVER_EXPIRES})
  ordering.flush()
  finish.reset(member, extras, out)
  workflow.live_again(rec, extras.batch, $outcome.state(out), false, alone)
end

function finish.forget(members)  -- delete all records of ended jobs
  local ids, steps = {}, call('EXISTS', P .. 'steps') == 1
  each(members, function(...)
    local some = {...}
    for i, rec in ipairs(call('HMGET', P .. 'job', ...)) do
      if rec then
        push(ids, record.id(rec))
        if band(record.flags(rec), $job.WAITS + $job.BATCH) ~= 0 then workflow.forget(some[i], rec) end
      end
      if steps then call('DEL', P .. 'st:' .. some[i]) end
    end
    for _, name in ipairs({'out', 'tries', 'steps', 'job'}) do call('HDEL', P .. name, ...) end
    for _, name in ipairs({'arch', 'kept', 'expiry', 'bad:F', 'bad:X', 'bad:D', 'old:F', 'old:X', 'old:D'}) do
      call('ZREM', P .. name, ...)
    end
  end)
  bulk('HDEL', P .. 'ids', ids)
end

local function mark_dead(worker)
  if call('EXISTS', P .. 'worker:' .. worker) == 1 then call('HSET', P .. 'worker:' .. worker, 'state', 'dead') end
  clear_idle(worker)
end

local function forget_worker(worker)  -- unless it holds leases
  if call('EXISTS', P .. 'l:' .. worker) == 0 then
    call('SREM', P .. 'workers', worker)
    call('DEL', P .. 'worker:' .. worker)
  end
end

local function confirm_expired(worker)  -- past its deadline; it must register again before it can go on
  local row = call('HMGET', P .. 'worker:' .. worker, 'ends', 'state')
  if row[1] and tonumber(row[1]) > now and row[2] ~= 'dead' then return false end
  mark_dead(worker)
  return true
end

local function answer_late(member, token, state)
  local out = call('HGET', P .. 'out', member)
  local last, standing
  if out then
    last, standing = $lease.token(finish.before(out)), $outcome.state(out)
    if last == '' then last = NONE end  -- the job never ran
  elseif call('HEXISTS', P .. 'lease', member) == 1 then
    return 'lost'
  else
    local requeue = call('HGET', P .. 'again', member)
    if not requeue and call('HEXISTS', P .. 'job', member) == 0 then return 'lost' end
    last, standing = requeue and $requeue.token(requeue) or NONE, 'Q'
  end
  if last ~= token then return 'lost' end
  return (state == standing or state == 'Q') and 'same' or 'lost'
end

local function put_back(report, member, held)  -- queue a job again whose lease has ended
  local number, rec = $lease.class(held), record.of(member)
  if report.needs ~= '' or report.rung ~= '' then
    local key = class.parts(number)
    local rung, wanted, names = report.rung ~= '' and report.rung or key.rung, {}, {}
    for _, need in ipairs(key.needs) do wanted[need] = true end
    for need in string.gmatch(report.needs, '[^%z]+') do wanted[need] = true end
    for need in pairs(wanted) do push(names, need) end
    table.sort(names, before)
    number = class.number(concat({key.lane, rung, '1', unpack(names)}, '\0'))
  end
  local extras, eligible, due, key = record.extras(rec), 0, 0, NONE
  if report.delay > 0 then
    due = now + report.delay
    ordering.delay(number, member, due)
  else
    eligible = report.front and tonumber($lease.eligible(held)) or now
    local place = report.front and member or member_of(call('HINCRBY', P .. 'meta', 'seq', 1))
    local step = rule_index.step(record.task(rec), extras.tenant or '')
    key = ordering.put(number, member, place, extras.tenant, fmt('%015d', eligible), step, report.front)
    ordering.flush()
  end
  not_quiet()
  local expires = band($lease.flags(held), $lease.NEVER_EXPIRES) == 0
  call('HSET', P .. 'again', member, $requeue{
    token = $lease.token(held), epoch = $lease.epoch(held), attempts = report.attempts, crashes = report.crashes,
    eligible = fmt('%015d', eligible), due = fmt('%015d', due), class = number, order_key = key,
    timeout = report.timeout, flags = expires and 0 or $requeue.NEVER_EXPIRES, blob = report.requeue_blob})
  if extras.expires_ms and expires then
    call('ZADD', P .. 'expiry', num(tonumber($job.submitted(rec)) + extras.expires_ms), member)
  end
end

-- A report is a member, then token, state and body in one text. If the state is R, more arguments follow as named here.
-- The heeded ones replace state and body if a client has asked to cancel the job.
local function read_report(args, at)
  local said = args[at + 1]
  local report = {member = args[at], token = $report.token(said), state = $report.state(said)}
  if report.state ~= 'R' then
    report.body = $report.body(said)
    return report
  end
  report.state, report.body, report.attempt = args[at + 2], args[at + 3], args[at + 4]
  report.heeded, report.heeded_attempt, report.requeue_blob = args[at + 5], args[at + 6], args[at + 7]
  report.needs, report.front, report.expired = args[at + 8], args[at + 9] == '1', args[at + 10] == '1'
  report.delay, report.attempts = tonumber(args[at + 11]), tonumber(args[at + 12])
  report.crashes, report.timeout, report.rung = tonumber(args[at + 13]), tonumber(args[at + 14]), args[at + 15]
  return report
end

-- A batch of reports. Writes that reports have in common are gathered and sent as one command.
local batch = {}

function batch.begin()
  return {
    answers = {}, late = {}, outs = {}, done = {}, completed = {}, workers = {}, lived = {}, freed = {}, leases_of = {},
  }
end

function batch.leave(r, worker, member)  -- end a lease
  r.done[member] = true
  gather(r.workers, worker, member)
end

function batch.release(r, member, sets)  -- the limits of these sets no longer count a lease
  local leases_of, freed = r.leases_of, r.freed
  for i = 1, #sets do gather_few(leases_of, freed, sets[i], member) end
end

function batch.flush_shares(r)  -- ended jobs no longer count for their tenants
  for number, gone in pairs(r.lived) do
    bulk('ZREM', P .. 'live:' .. num(number), gone)
    tx.last[number] = nil
  end
  r.lived = {}
end

function batch.forget(r, state, member, found, tenant)
  local number, key = $lease.class(found), $lease.order_key(found)
  if state == 'Q' then
    ordering.forget(number, tenant, key, member)
    return
  end
  gather(r.lived, number, ordering.share(tenant, key, member))
end

function batch.take(r, k, report, found)  -- apply one report of any kind
  local member = report.member
  if report.token == NONE and call('HEXISTS', P .. 'job', member) == 0 then
    count('transient_' .. STATES[report.state], 1)
    return
  end
  if not found or r.done[member] or $lease.token(found) ~= report.token then
    push(r.late, {k, report})
    return
  end
  local rest = lease.rest(found)
  if report.expired and not confirm_expired(rest.worker) then
    r.answers[k] = 'lost'
    return
  end
  local state, body, attempt = report.state, report.body, report.attempt
  local cancel_asked, progress = false, false
  if not r.plain then
    cancel_asked, progress = call('HGET', P .. 'cancel', member), call('HGET', P .. 'progress', member)
  end
  if cancel_asked and state == 'Q' then state, body, attempt = 'X', report.heeded, report.heeded_attempt end
  batch.leave(r, rest.worker, member)
  if attempt and attempt ~= '' then
    local entry = $attempt{
      epoch = $lease.epoch(found), number = $lease.attempts(found), started = $lease.started(found), finished = now15}
    entry = entry .. text(rest.worker) .. attempt
    call('HSET', P .. 'tries', member, (call('HGET', P .. 'tries', member) or '') .. pack('>I4', #entry) .. entry)
  end
  batch.release(r, member, limits.sets(rest.held or {}))
  if rest.tenant then batch.forget(r, state, member, found, rest.tenant) end
  if rest.batch then workflow.count(rest.batch, 'running', -1) end
  if state == 'Q' then
    count(attempt and attempt ~= '' and 'retried' or report.front and 'released' or 'snoozed', 1)  -- as counted_as
    batch.flush_shares(r)
    put_back(report, member, found)
  else
    local noted = cancel_asked or progress
    local out = $outcome{state = state, finished = now15, kind = (noted and 'P' or 'E'), length = #found} .. found
    if noted then out = out .. $notes{cancel_asked = (cancel_asked or ZERO)} .. text(progress or '') end
    keep(member, record.of(member), state, out .. body)
    if band($lease.flags(found), $lease.WAITS) ~= 0 then workflow.dependant_ended(member) end
    if state == 'C' then push(r.completed, member) end
  end
  if cancel_asked then call('HDEL', P .. 'cancel', member) end
  if progress then call('HDEL', P .. 'progress', member) end
end

function batch.settle(r)
  bulk('HSET', P .. 'out', r.outs)
  batch.flush_shares(r)
  for _, mine in pairs(r.workers) do bulk('HDEL', P .. 'lease', mine) end
  limits.release(r.freed, r.leases_of)
  for worker, mine in pairs(r.workers) do
    bulk('SREM', P .. 'l:' .. worker, mine)
  end
  if #r.completed > 0 then
    call('RPUSH', P .. 'fin', $completed{finished = now15, members = concat(r.completed)})
    finish.mark_for_archive(r.completed)
  end
  if next(r.done) then limits.wake_classes_with_room(rule_index.now().rungs[1] ~= nil) end
  for _, entry in ipairs(r.late) do  -- last, since a batch may hold a report twice
    r.answers[entry[1]] = answer_late(entry[2].member, entry[2].token, entry[2].state)
  end
end

-- Apply reports under the tokens of their leases. Return the next argument, and the reports that were refused.
function finish.apply(args, at, n)
  if n == 0 then return at, {} end
  local members, starts, heads = {}, {}, {}
  local head, words = nil, 0  -- of the last report: its token and state, and how many arguments it has
  for k = 1, n do
    local token_and_state = $report[..body](args[at + 1])
    if token_and_state ~= head then
      head = token_and_state
      words = $report.state(head) == 'R' and 16 or 2  -- as ``read_report`` reads them
    end
    members[k], starts[k], heads[k] = args[at], at, head
    at = at + words
  end
  local held, r = fields_of(P .. 'lease', members), batch.begin()
  -- By size: the fields of an outcome. By the id of a batch behind its length: how many members completed.
  local sizes, members_done = {}, {}
  local outs, completed, done = r.outs, r.completed, r.done
  local plain, usual = quiet() or call('EXISTS', P .. 'cancel', P .. 'progress') == 0, 0
  local completed_n, token, completes = 0, nil, false  -- the last two of the last report
  -- Of the last lease: its flags with its worker, its flags alone, the place behind the worker, the worker's leases
  -- that end, how many they are, and whether the lease has no unique key, a tenant, nothing but a tenant, a batch,
  -- edges to and from other jobs, terms.
  local kind, flags, behind, leases, leases_n, common = nil, nil, $lease.size + 1, nil, 0, false
  local fair, only_fair, batched, sources, waited, termed = false, false, false, false, false, false
  local packed_class, gone, gone_n = nil, nil, 0  -- of the last lease with a tenant: its class, whose shares end
  local batch_text = text('')  -- of the last lease with a batch: its id behind the length
  r.plain = plain
  for k = 1, n do
    local member, said, found = members[k], args[starts[k] + 1], held[k]
    if heads[k] ~= head or not token then
      head = heads[k]
      token, completes = $report.token(head), $report.state(head) == 'C'
    end
    if found and sub(found, $lease.size, behind - 1) ~= kind then  -- the flags are the last byte before the worker
      local worker
      flags = $lease.flags(found)
      worker, behind = text_at(found, $lease.size + 1)
      kind, leases = sub(found, $lease.size, behind - 1), r.workers[worker] or {}
      common = flags and band(flags, $lease.UNIQUE) == 0
      if common then
        r.workers[worker] = leases
        fair, only_fair = band(flags, $lease.FAIR) ~= 0, flags == $lease.FAIR
        batched, termed = band(flags, $lease.BATCH) ~= 0, band(flags, $lease.TERMS) ~= 0
        sources, waited = band(flags, $lease.SOURCE) ~= 0, band(flags, $lease.WAITS) ~= 0
      end
      leases_n = #leases
    end
    if found and plain and common and completes and not done[member]
      and $lease.token(found) == token then  -- the usual case: it completed, and has no unique key
      local size = #found
      if not sizes[size] then
        sizes[size] = $outcome{state = 'C', finished = now15, kind = 'E', length = size}
      end
      usual = usual + 1
      outs[2 * usual - 1], outs[2 * usual] = member, sizes[size] .. found .. $report.body(said)
      completed_n, leases_n = completed_n + 1, leases_n + 1
      completed[completed_n], leases[leases_n], done[member] = member, member, true
      if flags ~= 0 then
        local at_ = behind
        if fair then
          local after = only_fair and #found + 1 or at_ + 2 + i2(found, at_)
          local class_now = $lease[class](found)
          if class_now ~= packed_class then
            local number = $lease.class(found)
            packed_class, gone = class_now, r.lived[number] or {}
            r.lived[number], gone_n = gone, #gone
          end
          gone_n = gone_n + 1
          gone[gone_n] = sub(found, at_, after - 1) .. $share{order_key = $lease.order_key(found), member = member}
          at_ = after
        end
        if batched then
          local after = at_ + #batch_text
          if sub(found, at_, after - 1) ~= batch_text then
            batch_text = text(text_at(found, at_))
            after = at_ + #batch_text
          end
          members_done[batch_text] = (members_done[batch_text] or 0) + 1
          at_ = after
        end
        if sources then workflow.source_ended(member, 'C') end
        if waited then workflow.dependant_ended(member) end
        if termed then batch.release(r, member, limits.held(sub(found, at_))) end
      end
    else
      batch.take(r, k, read_report(args, starts[k]), found)
      kind, packed_class, completed_n = nil, nil, #completed  -- it may add to all that is gathered, or use it up
    end
  end
  count('completed', usual)
  for packed, n_ in pairs(members_done) do
    local batch_id = text_at(packed, 1)
    workflow.count(batch_id, 'running', -n_)
    workflow.member_ended(batch_id, 'C', n_)
  end
  batch.settle(r)
  local refused = {}
  for k = 1, n do
    if r.answers[k] then push(refused, num(k - 1), r.answers[k]) end
  end
  if watched() then
    for _, member in ipairs(members) do
      local rec = record.of(member)
      if rec then push(tx.changed, record.id(rec)) end
    end
  end
  return at, refused
end
