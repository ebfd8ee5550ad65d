-- claim: lease jobs by a plan, within all limits. Leases are written before jobs leave their queue.
local claim = {}

function claim.new_reply() return {n = 0, members = {}, records = {}, held = {}, runs = {}} end

function claim.give(out, member, rec, held)  -- add to the reply; the client derives a lease without a past by itself
  local n = out.n + 1
  out.n, out.members[n], out.records[n] = n, member, rec
  if held then push(out.held, num(n - 1), held) end
end

function claim.give_run(out, name, count, assigned)  -- say of which class and rung the last jobs of the reply are
  local runs = out.runs
  local n = #runs
  runs[n + 1], runs[n + 2], runs[n + 3] = name, num(count), assigned
end

local function transient(number, want, into)  -- from the list, except for paused tasks
  local key, taken, tasks = P .. 'tr:' .. num(number), 0, rule_index.now().tasks
  local paused = next(tasks) ~= nil
  local entries = call('LRANGE', key, 0, paused and -1 or want - 1)
  for _, entry in ipairs(entries) do
    if taken == want then break end
    if not paused or not tasks[record.task($transient.job(entry))] then
      claim.give(into, $transient.member(entry), $transient.job(entry))
      if paused then call('LREM', key, 1, entry) end
      taken = taken + 1
    end
  end
  if not paused and taken > 0 then call('LTRIM', key, taken, -1) end
  return taken
end

local function block_reason(blocking)
  if sub(blocking, 1, 8) == '=paused:' then return 'paused' end
  local rule = rule_index.now().limits[string.match(blocking, '^[^=]*')]
  return rule and not rule.most and 'rate' or 'limit'
end

local function waited_text(known, head)  -- why a job was blocked, and for how many milliseconds, as a lease has it
  local reason, waited = block_reason(head.limit), now - tonumber(blocked_queue.since(head))
  known[reason] = known[reason] or {}
  local found = known[reason][waited]
  if not found then
    found = text(reason) .. text(num(waited))
    known[reason][waited] = found
  end
  return found
end

-- Lease up to want jobs of a class into out. Cancel expired jobs on the way, and move jobs without room in a limit to
-- its blocked queue. Return how many were leased, and whether it stopped because it had skipped too many.
function claim.take(take, want, worker, token, out)
  local number, name = take.number, num(take.number)
  local key = class.parts(number)
  if not key.persist then
    local taken = transient(number, want, out)
    if taken > 0 then claim.give_run(out, key.name, taken, '') end
    return taken, false
  end
  local rules, queue = rule_index.now(), P .. 'w:' .. num(number)
  local clock, climbs, blocked = ordering.clock(number), limits.on_ladder(key.rung), nil
  local any_again = not quiet() and call('EXISTS', P .. 'again') == 1
  local fresh = $lease{token = token, epoch = 1, attempts = 1, crashes = 0, started = now15}
  local packed_class, no_timeout, asker = $lease{class = number}, $lease{timeout = 0}, text(worker)
  local no_tenant, never_blocked = text(''), text('') .. text('')
  local batches_met = {}  -- by batch: its id behind its length, whether it is cancelled, and how many members start
  local ends, waits = {}, {}  -- by flags: the end of most leases, from the timeout on; by reason and length: a wait
  local front, scores, recs, requeues, at, base = {}, {}, {}, {}, 0, 0
  local leases, mine, aged, again, got, passed, more, highest = {}, {}, {}, {}, 0, 0, false, nil
  local mine_n, aged_n = 0, 0  -- how many entries these lists have, since the operator # searches for the end
  local members, records = out.members, out.records
  local rung, first = '', 0  -- of the last jobs, and how many jobs came before them
  -- Of the last job: the fields of its record, the moment of its submit, its flags, whether it may expire or has a
  -- unique key, and the place behind its id. Most jobs have the fields of the one before.
  local fields, since, flags, rare, after_id = nil, nil, 0, false, 0
  local function read_blocked()  -- every turn of the loop takes or passes one head, so these suffice
    blocked = blocked_queue.change(number)
    if blocked_queue.any(number) then blocked_queue.read_open(blocked, want + SKIPPED_MAX, any_again) end
  end
  local function write()
    limits.flush()  -- before the leases, so that no limit counts too few
    bulk('HSET', P .. 'lease', leases)
    bulk('SADD', P .. 'l:' .. worker, mine)
    bulk('HDEL', P .. 'again', again)
    bulk('ZREM', P .. 'a:' .. name, aged)
    blocked_queue.flush(blocked)  -- after the leases, so that no job leaves its queue without one
    leases, mine, again, aged, mine_n, aged_n = {}, {}, {}, {}, 0, 0
  end
  read_blocked()
  while got < want do
    if at == #front then  -- read the next part of the queue
      base = base + at
      at = 0
      if clock then
        local found = call('ZRANGE', queue, base, base + want - got - 1, 'WITHSCORES')
        front, scores = {}, {}
        for i = 1, #found / 2 do front[i], scores[i] = found[2 * i - 1], found[2 * i] end
      else
        front = call('ZRANGE', queue, base, base + want - got - 1)
        scores = front
      end
      if #front > 0 then
        recs = call('HMGET', P .. 'job', unpack(front))
        requeues = any_again and call('HMGET', P .. 'again', unpack(front)) or {}
      end
    end
    local member, order, rec, requeue = front[at + 1], scores[at + 1], recs[at + 1], requeues[at + 1]
    if requeue and not clock then order = $requeue.order_key(requeue) end
    local blocking = blocked.heads[1] and blocked_queue.first(blocked, order, member)
    if blocking then member, order, rec, requeue = blocking.member, blocking.order, blocking.rec, blocking.requeue end
    if not member then break end
    if not rec then  -- without a record there is no lease; the job leaves the queue
      if blocking then blocked_queue.drop(blocked, blocking) else at = at + 1 end
    else
      if sub(rec, 1, $job.size) ~= fields then
        fields, since = sub(rec, 1, $job.size), record.since(rec)
        flags, after_id = record.flags(rec), record.after_id(rec)
        rare = band(flags, $job.EXPIRES + $job.UNIQUE) ~= 0
      end
      local eligible = requeue and $requeue.eligible(requeue) or since
      if take.until_at and tonumber(eligible) > take.until_at then break end
      if passed == SKIPPED_MAX then
        more = true
        break
      end
      local assigned, extras, tenant, own, batch, full, full_at, keys = '', nil, nil, nil, nil, nil, nil, nil
      if flags ~= 0 then
        tenant, own, batch = record.sharing(rec, flags, after_id)
        if rare then extras = record.extras(rec) end
      end
      local expires = not requeue or band($requeue.flags(requeue), $requeue.NEVER_EXPIRES) == 0
      local batch_met, stopped = nil, nil
      if batch then
        batch_met = batches_met[batch]
        if not batch_met then
          local cancelled = workflow.cancelled(batch) and 'batch ' .. batch
          batch_met = {text = text(batch), stopped = cancelled, started = 0}
          batches_met[batch] = batch_met
        end
        stopped = batch_met.stopped
      end
      if stopped or (expires and extras and extras.expires_ms
        and tonumber(since) + extras.expires_ms <= now) then
        if blocking then write() else base = base - 1; at = at + 1 end
        finish.cancel_queued(member, rec, stopped or 'expired')
        if blocking then read_blocked() end
        push(tx.changed, record.id(rec))
        passed = passed + 1
      else
        local fits = true
        if climbs then fits, assigned = limits.fit(key.rung) end
        if not fits then break end
        if rules.may_limit or own then
          keys = rule_index.keys(rec, tenant, own, after_id)
          if keys.any then full, full_at = limits.start(member, keys) end
        end
        if full then
          if blocking and blocking.limit == full then
            blocked_queue.close(blocked, full, full_at)
          else
            local waited = blocking and blocked_queue.since(blocking) or now15
            if blocking then
              blocked_queue.drop(blocked, blocking)
            else
              at = at + 1
              if clock then
                aged_n = aged_n + 1
                aged[aged_n] = member
              end
            end
            blocked_queue.add(blocked, member, order, full, waited, full_at)
          end
          passed = passed + 1
        else
          local bits, tail, terms, head = extras and extras.unique and $lease.UNIQUE or 0, '', '', fresh
          if requeue then
            local attempts = math.min($requeue.attempts(requeue) + 1, 65535)  -- no more than two bytes hold
            head = $lease{
              token = token, epoch = $requeue.epoch(requeue) + 1, attempts = attempts,
              crashes = $requeue.crashes(requeue), started = now15}
            if not expires then bits = bits + $lease.NEVER_EXPIRES end
            push(again, member)
          end
          if clock then
            bits, tail = bits + $lease.FAIR, tenant or no_tenant
          end
          if batch then
            bits, tail = bits + $lease.BATCH, tail .. batch_met.text
            batch_met.started = batch_met.started + 1
          end
          if flags >= $job.WAITS then  -- or SOURCE
            if band(flags, $job.WAITS) ~= 0 then bits = bits + $lease.WAITS end
            if band(flags, $job.SOURCE) ~= 0 then bits = bits + $lease.SOURCE end
          end
          local counted_by = keys and keys.packed or ''
          if blocking or assigned ~= '' then
            local waited = blocking and waited_text(waits, blocking) or never_blocked
            bits, terms = bits + $lease.TERMS, text(assigned) .. waited .. counted_by
          elseif counted_by ~= '' then
            bits, terms = bits + $lease.TERMS, keys.terms
          end
          local rest = not requeue and ends[bits]
          if not rest then
            local timeout = requeue and $requeue[timeout](requeue) or no_timeout
            rest = $lease{timeout = bytes timeout, flags = bits} .. asker
            if not requeue then ends[bits] = rest end
          end
          local held_as = head .. $lease{eligible = eligible, class = bytes packed_class, order_key = order}
            .. rest .. tail .. terms
          mine_n = mine_n + 1
          mine[mine_n], leases[2 * mine_n - 1], leases[2 * mine_n] = member, member, held_as
          local n = out.n + 1
          out.n, members[n], records[n] = n, member, rec  -- as ``claim.give`` does
          if requeue then push(out.held, num(n - 1), held_as) end
          if assigned ~= rung then
            if got > first then claim.give_run(out, key.name, got - first, rung) end
            rung, first = assigned, got
          end
          got = got + 1
          highest = order  -- jobs are taken in the order of their keys
          if climbs then limits.count_rung(assigned) end
          if blocking then
            blocked_queue.drop(blocked, blocking)
            push(blocked.left, member)
          else
            at = at + 1
            if clock then
              aged_n = aged_n + 1
              aged[aged_n] = member
            end
          end
        end
      end
    end
  end
  if got > first then claim.give_run(out, key.name, got - first, rung) end
  for batch, met in pairs(batches_met) do workflow.count(batch, 'running', met.started) end
  write()
  if clock and highest and tonumber(highest) > clock then
    call('HSET', P .. 'clock', name, highest)
    tx.clock[number] = tonumber(highest)
  end
  -- Last, so that no job leaves its queue before its lease is written.
  if base + at > 0 then call('ZREMRANGEBYRANK', queue, 0, base + at - 1) end
  return got, more
end

local function class_of(member, rec)  -- the class of a delayed job, even if its record is damaged
  local number = record.class(rec)
  if call('SISMEMBER', P .. 'late:' .. num(number), member) == 1 then return number end
  for other = 1, class.all() do
    if call('SISMEMBER', P .. 'late:' .. num(other), member) == 1 then return other end
  end
  return number
end

-- Make a bounded batch of due jobs eligible.
function claim.start_due()
  if quiet() then return end
  local due = call('ZRANGE', P .. 'due', '-inf', num(now), 'BYSCORE', 'LIMIT', 0, DUE_BATCH_MAX)
  for _, member in ipairs(due) do
    local rec, requeue = record.of(member), call('HGET', P .. 'again', member)
    if rec then
      local number = requeue and $requeue.class(requeue) or class_of(member, rec)
      make_eligible(member, rec, number, requeue, member_of(call('HINCRBY', P .. 'meta', 'seq', 1)))
      call('SREM', P .. 'late:' .. num(number), member)
    end
  end
  ordering.flush()
  if #due > 0 then call('ZREM', P .. 'due', unpack(due)) end
end
