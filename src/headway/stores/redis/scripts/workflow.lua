-- workflow: held jobs, edges that are settled by the state of their source, and batches that count their members.
--
-- core/workflow.py has the rule of edges. An edge has the letter of its rule: C cancel, R run, H hold, F on_failure,
-- D on_done. A source is live (L), completed (C) or failed (F).
--
-- A function notes what becomes of jobs with ``source_ended``, ``member_ended``, ``live_again`` and ``count``. ``run``
-- then settles the edges of these sources, those that earlier functions left first, and changes each batch once. One
-- function settles at most SETTLED_MAX edges. It leaves the rest in the lists ``unsettled`` and ``stopping``.
--
-- A batch has the fields name, seq, created, open, total, kept (members that are not pruned), live, children, held,
-- running, completed, failed, cancelled, failing, round; and if they apply key, tenant, parent, cancel, finished, and
-- swept: the number of the last member that ``stopping`` has reached.
local finish = {}  -- in finish.lua
local make_eligible
do  -- since Lua allows 200 local variables at a time
local ENDINGS = {C = 'completed', F = 'failed', D = 'failed', X = 'cancelled'}
local TEXTS = {name = true, key = true, tenant = true, parent = true}

function workflow.count(id, field, n)  -- add to a count of a batch, which ``run`` writes
  tx.flow = true
  local change = tx.counted[id]
  if not change then
    change = {}
    tx.counted[id] = change
  end
  change[field] = (change[field] or 0) + n
end

function workflow.batch(id)  -- the fields of a batch, or false
  if sub(id, 1, 6) ~= 'batch-' then return false end  -- the id of a job
  local found = tx.batch[id]
  if found == nil then
    local flat = call('HGETALL', P .. 'b:' .. id)
    found = #flat > 0 and {}
    for i = 1, #flat, 2 do found[flat[i]] = TEXTS[flat[i]] and flat[i + 1] or tonumber(flat[i + 1]) end
    tx.batch[id] = found
  end
  return found
end

function workflow.set(id, field, value)  -- change a field of a batch; nil removes it
  tx.flow = true
  local changes = tx.dirty[id]
  if not changes then
    changes = {}
    tx.dirty[id] = changes
  end
  tx.batch[id][field] = value
  if value == nil then value = false end
  changes[field] = value
end

local function flush_batches()
  for id, changes in pairs(tx.dirty) do
    local written, gone = {}, {}
    for field, value in pairs(changes) do
      if value then push(written, field, TEXTS[field] and value or num(value)) else push(gone, field) end
    end
    bulk('HSET', P .. 'b:' .. id, written)
    bulk('HDEL', P .. 'b:' .. id, gone)
  end
  tx.dirty = {}
end

function workflow.cancelled(id)
  local found = workflow.batch(id)
  return found and found.cancel ~= nil
end

-- Return up to this many members of a batch behind a number, and whether there are more. Some may have been pruned.
function workflow.members(id, beyond, most)
  local found, some = {}, nil
  repeat
    some = call('ZRANGE', P .. 'bm:' .. id, '(' .. num(beyond), '+inf', 'BYSCORE', 'LIMIT', 0, 100, 'WITHSCORES')
    for i = 1, #some, 2 do
      for seq = math.max(tonumber(some[i]) - BASE, beyond + 1), tonumber(some[i + 1]) do
        if #found == most then return found, true end
        push(found, member_of(seq))
        beyond = seq
      end
    end
  until #some == 0
  return found, false
end

local function touch(source)  -- its edges have to be settled
  tx.flow = true
  if not tx.touched[source] then push(tx.sources, source) end
  tx.touched[source] = true
end

function workflow.source_ended(member, state)
  local id = record.id(record.of(member))
  tx.status[id] = state == 'C' and 'C' or 'F'
  touch(id)
end

function workflow.dependant_ended(member)  -- a new round may have begun while a callback ran
  if call('HEXISTS', P .. 'up:' .. member, 'again') == 0 then return end
  tx.flow = true
  push(tx.ran, member)
end

function workflow.retried(member, rec)  -- it waits again, if a source is live once all jobs of the verb are queued
  if band(record.flags(rec), $job.WAITS) == 0 then return end
  tx.flow = true
  push(tx.retried, member)
end

function workflow.member_ended(batch, state, n)
  workflow.count(batch, 'live', -n)
  workflow.count(batch, ENDINGS[state], n)
  if state ~= 'C' then workflow.count(batch, 'bad', n) end
end

function workflow.live_again(rec, batch, state, held, alone)  -- an ended job is queued; alone: without its dependants
  if band(record.flags(rec), $job.SOURCE) ~= 0 then
    local id = record.id(rec)
    tx.status[id] = 'L'
    if not alone then
      touch(id)
    elseif call('HDEL', P .. 'reached', id) == 1 then
      call('LREM', P .. 'unsettled', 1, id)
    end
  end
  if batch then
    workflow.count(batch, 'live', 1)
    workflow.count(batch, 'held', held and 1 or 0)
    workflow.count(batch, ENDINGS[state], -1)
  end
end

function workflow.mark_source(member)  -- so that the end of the job settles its edges
  local rec = record.of(member)
  local flags, held = record.flags(rec), call('HGET', P .. 'lease', member)
  if band(flags, $job.SOURCE) ~= 0 then return end
  rec = $job[..flags](rec) .. $job{flags = flags + $job.SOURCE} .. $job[id_length..](rec)
  call('HSET', P .. 'job', member, rec)
  tx.record[member] = rec
  if held then
    flags = bit.bor($lease.flags(held), $lease.SOURCE)
    call('HSET', P .. 'lease', member, $lease[..flags](held) .. $lease{flags = flags} .. sub(held, $lease.size + 1))
  end
end

-- Let a delayed or held job wait in its class. place: its order key if no tenants share the class.
function make_eligible(member, rec, number, requeue, place)
  local tenant = record.extras(rec).tenant
  local step = rule_index.step(record.task(rec), tenant or '')
  local key = ordering.put(number, member, place, tenant, now15, step)
  not_quiet()
  call('HSET', P .. 'again', member, requeue
    and $requeue[..eligible](requeue)
      .. $requeue{eligible = now15, due = ZERO, class = number, order_key = key} .. $requeue[timeout..](requeue)
    or $requeue{
      token = NONE, epoch = 0, attempts = 0, crashes = 0, eligible = now15, due = ZERO, class = number,
      order_key = key, timeout = 0, flags = 0})
end

local function verdict_of(rule, status, failing)  -- as core.workflow.settle: S satisfy, X cancel, W wait
  if rule == 'F' then return failing and 'S' or status == 'L' and 'W' or 'X' end
  if status == 'L' then return 'W' end
  if status == 'C' or rule == 'R' or rule == 'D' then return 'S' end
  return rule == 'C' and 'X' or 'W'
end

-- The status of a source, whether it is a batch with a bad ending in this round, and whether it was pruned.
function workflow.status_of(source, satisfied)
  local found = workflow.batch(source)
  if found then
    if not found.finished then return 'L', found.failing == 1 end
    return found.failed + found.cancelled == 0 and 'C' or 'F', found.failing == 1
  end
  local status = tx.status[source]
  if not status then
    local member = call('HGET', P .. 'ids', source)
    if not member then return satisfied and 'C' or 'F', false, true end
    local out = call('HGET', P .. 'out', member)
    status = not out and 'L' or $outcome.state(out) == 'C' and 'C' or 'F'
    tx.status[source] = status
  end
  return status, false
end

local function held_in(member)  -- the class of a held job, its record and its requeue; or nil
  local rec, requeue = record.of(member), call('HGET', P .. 'again', member)
  local number = requeue and $requeue.class(requeue) or record.class(rec)
  if call('SISMEMBER', P .. 'held:' .. num(number), member) == 1 then return number, rec, requeue end
  return nil
end

local function release(member, number, rec, requeue)
  local extras, due, place = record.extras(rec), 0, member
  if extras.due then due = math.max(extras.due, tonumber(record.since(rec)) + extras.delay) end
  if due > now then
    ordering.delay(number, member, due)
  else
    if call('HEXISTS', P .. 'up:' .. member, 'back') == 1 then
      place = member_of(call('HINCRBY', P .. 'meta', 'seq', 1))
    end
    make_eligible(member, rec, number, requeue, place)
  end
  if extras.batch then workflow.count(extras.batch, 'held', -1) end
  count('unheld', 1)
  push(tx.changed, record.id(rec))
  call('SREM', P .. 'held:' .. num(number), member)
end

local function cancel_held(member, rec, source)
  finish.cancel_queued(member, rec, 'upstream ' .. source)
  push(tx.changed, record.id(rec))
end

function workflow.edges(member)  -- of a job, in the order in which they were given
  local flat, found = call('HGETALL', P .. 'up:' .. member), {}
  for i = 1, #flat, 2 do
    if sub(flat[i], 1, 1) == '>' then
      local edge = flat[i + 1]
      push(found, {
        source = sub(flat[i], 2), rule = $edge.rule(edge), satisfied = $edge.satisfied(edge) == '1',
        place = $edge.place(edge)})
    end
  end
  table.sort(found, function(a, b) return a.place < b.place end)
  return found
end

local function set_edge(member, source, edge, satisfied)  -- return how many edges of the job are not satisfied
  local up, before_ = P .. 'up:' .. member, $edge.satisfied(edge)
  local now_ = satisfied and '1' or '0'
  call('HSET', up, '>' .. source, $edge[..satisfied](edge) .. $edge{satisfied = now_} .. $edge[place..](edge))
  return call('HINCRBY', up, 'left', num(tonumber(before_) - tonumber(now_)))
end

function workflow.would_settle(source, rule)  -- whether a new edge need not wait
  return verdict_of(rule, workflow.status_of(source, false)) ~= 'W'
end

local function verdict_now(edge)
  local status, failing, pruned = workflow.status_of(edge.source, edge.satisfied)
  return pruned and edge.satisfied and 'S' or verdict_of(edge.rule, status, failing)
end

function workflow.settle_dependant(member)  -- settle all edges of a held job at once
  local up = P .. 'up:' .. member
  local number, rec, requeue = held_in(member)
  for _, edge in ipairs(workflow.edges(member)) do
    local verdict = verdict_now(edge)
    if verdict == 'X' then return cancel_held(member, rec, edge.source) end
    if (verdict == 'S') ~= edge.satisfied then
      set_edge(member, edge.source, call('HGET', up, '>' .. edge.source), verdict == 'S')
    end
  end
  if tonumber(call('HGET', up, 'left')) == 0 then release(member, number, rec, requeue) end
end

-- Hold a job that has ended or been released as if it were new, unless another job uses its unique key now.
local function hold_again(member, rec, out)
  local extras, number, epoch = record.extras(rec), nil, 0
  if out then
    if extras.unique and call('HEXISTS', P .. 'unique', extras.unique) == 1 then return end
    number, epoch = finish.class_before(rec, out)
  else
    ordering.flush()  -- it may have been released a moment ago
    local at, key, delayed, requeue = leave_queue(member, rec)
    if not delayed then ordering.forget(at, extras.tenant, key, member) end
    number, epoch = at, requeue and $requeue.epoch(requeue) or 0
  end
  not_quiet()
  call('HSET', P .. 'again', member, $requeue{
    token = NONE, epoch = epoch, attempts = 0, crashes = 0, eligible = ZERO, due = ZERO, class = number,
    order_key = NONE, timeout = 0, flags = $requeue.NEVER_EXPIRES})
  call('SADD', P .. 'held:' .. num(number), member)
  if out then
    finish.reset(member, extras, out)
    workflow.live_again(rec, extras.batch, $outcome.state(out), true, false)
  else
    call('ZREM', P .. 'expiry', member)
    if extras.batch then workflow.count(extras.batch, 'held', 1) end
  end
  call('HDEL', P .. 'steps', member)
  call('DEL', P .. 'st:' .. member)
  call('HDEL', P .. 'up:' .. member, 'again')
  push(tx.changed, record.id(rec))
  workflow.settle_dependant(member)
end

local function waits_again(member)  -- as core.workflow.waits_again
  local live = false
  for _, edge in ipairs(workflow.edges(member)) do
    local verdict = verdict_now(edge)
    if verdict == 'X' then return false end
    live = live or verdict == 'W' and workflow.status_of(edge.source, edge.satisfied) == 'L'
  end
  return live
end

local function hold_retried()  -- hold the retried jobs again that have a live source
  for _, member in ipairs(tx.retried) do
    if waits_again(member) then hold_again(member, record.of(member), false) end
  end
  tx.retried = {}
end

-- Let a dependant wait for a source that is live again, if its ending had released or cancelled the dependant.
local function wait_again(source, member, edge)
  local rule, satisfied, rec = $edge.rule(edge), $edge.satisfied(edge) == '1', record.of(member)
  if satisfied and held_in(member) then
    set_edge(member, source, edge, false)
  elseif satisfied and (rule == 'F' or rule == 'D') then  -- a new round has begun
    if call('HEXISTS', P .. 'lease', member) == 1 then
      call('HSET', P .. 'up:' .. member, 'again', '1')
    else
      hold_again(member, rec, call('HGET', P .. 'out', member))
    end
  else
    local out = call('HGET', P .. 'out', member)
    local reason_at = out and $outcome.size + $outcome.length(out) + 1
    if not out or $outcome.state(out) ~= 'X' or sub(out, reason_at) ~= 'upstream ' .. source then return end
    for _, other in ipairs(workflow.edges(member)) do
      if verdict_now(other) == 'X' then
        call('HSET', P .. 'out', member, sub(out, 1, reason_at - 1) .. 'upstream ' .. other.source)
        push(tx.changed, record.id(rec))
        return
      end
    end
    hold_again(member, rec, out)
  end
end

local function settle_edge(source, member, status, failing)
  local edge = call('HGET', P .. 'up:' .. member, '>' .. source)
  if not edge then return end
  local rule, satisfied = $edge.rule(edge), $edge.satisfied(edge) == '1'
  local verdict = verdict_of(rule, status, failing)
  if verdict == 'S' then
    if not satisfied and set_edge(member, source, edge, true) == 0 then
      local number, rec, requeue = held_in(member)
      if number then release(member, number, rec, requeue) end
    end
  elseif verdict == 'X' then
    local number, rec = held_in(member)
    if number then cancel_held(member, rec, source) end
  elseif status == 'L' then
    wait_again(source, member, edge)
  end
end

local function settle_source(source, reached)  -- from behind this number; return the number reached, or nil at the end
  local room = SETTLED_MAX - tx.settled
  local some = call('ZRANGE', P .. 'down:' .. source, '(' .. reached, '+inf', 'BYSCORE', 'LIMIT', 0, room + 1)
  local n = math.min(#some, room)
  tx.settled = tx.settled + n
  if n > 0 then
    local status, failing = workflow.status_of(source, false)
    for i = 1, n do settle_edge(source, some[i], status, failing) end
  end
  if #some <= n then return nil end
  return n > 0 and num(tonumber(some[n]) - BASE) or reached
end

local function leave_unsettled(source, reached)
  if call('HSET', P .. 'reached', source, reached) == 1 then call('RPUSH', P .. 'unsettled', source) end
  not_quiet()
end

local function settle_left()  -- go on with the sources that earlier functions left
  local source = call('LINDEX', P .. 'unsettled', 0)
  while source and tx.settled < SETTLED_MAX do
    local reached = settle_source(source, call('HGET', P .. 'reached', source) or '0')
    if reached then
      call('HSET', P .. 'reached', source, reached)
    else
      call('LPOP', P .. 'unsettled')
      call('HDEL', P .. 'reached', source)
      source = call('LINDEX', P .. 'unsettled', 0)
    end
  end
end

local function settle_sources()  -- of this function; a source in the list starts again there
  local at = tx.settled_to or 0
  while at < #tx.sources and tx.settled < SETTLED_MAX do
    at = at + 1
    local source = tx.sources[at]
    tx.touched[source] = nil
    if tx.left and call('HEXISTS', P .. 'reached', source) == 1 then
      call('HSET', P .. 'reached', source, '0')
    else
      local reached = settle_source(source, '0')
      if reached then
        leave_unsettled(source, reached)
        tx.left = true
      end
    end
  end
  tx.settled_to = at
end

local function cancel_members()  -- of cancelled batches
  local id = call('LINDEX', P .. 'stopping', 0)
  while id and tx.settled < SETTLED_MAX do
    local found = workflow.batch(id)
    local some, more = workflow.members(id, found and found.swept or 0, SETTLED_MAX - tx.settled)
    tx.settled = tx.settled + #some
    for _, member in ipairs(some) do
      local rec = call('HEXISTS', P .. 'out', member) == 0 and record.of(member)
      if rec then
        finish.cancel(member, rec, call('HGET', P .. 'lease', member), 'batch ' .. id)
        push(tx.changed, record.id(rec))
      end
    end
    if more then
      workflow.set(id, 'swept', tonumber(some[#some]) - BASE)
    else
      call('LPOP', P .. 'stopping')
      id = call('LINDEX', P .. 'stopping', 0)
    end
  end
end

local function count_child(found, field, n)  -- the end of a child batch, or -1: it goes on
  if not found.parent then return end
  workflow.count(found.parent, 'live', -n)
  workflow.count(found.parent, 'children', -n)
  workflow.count(found.parent, field, n)
  if n == 1 and field == 'failed' then workflow.count(found.parent, 'bad', 1) end
end

local function count_ending(id, found, change)
  local function ending() return found.failed + found.cancelled == 0 and 'completed' or 'failed' end
  local ended_as, changed = ending(), false
  for field, n in pairs(change) do
    if field ~= 'bad' and n ~= 0 then workflow.set(id, field, found[field] + n) end
  end
  if found.finished and found.live > 0 then  -- a new round
    workflow.set(id, 'finished', nil)
    if found.cancel then
      workflow.set(id, 'cancel', nil)
      workflow.set(id, 'swept', nil)
      call('LREM', P .. 'stopping', 1, id)
    end
    workflow.set(id, 'failing', 0)
    workflow.set(id, 'round', found.round + 1)
    call('ZREM', P .. 'over', id)
    count_child(found, ended_as, -1)
    changed = true
  end
  if change.bad and found.failing == 0 and not found.cancel then
    workflow.set(id, 'failing', 1)
    changed = true
  end
  if not found.finished and found.open == 0 and found.live == 0 then
    workflow.set(id, 'finished', now)
    call('ZADD', P .. 'over', num(now), id)
    count_child(found, ending(), 1)
    changed = true
  end
  if changed and call('EXISTS', P .. 'down:' .. id) == 1 then touch(id) end
end

local function count_endings()  -- in the order of the ids, children before their parents
  while next(tx.counted) ~= nil do
    local changes, ids = tx.counted, {}
    tx.counted = {}
    for id in pairs(changes) do push(ids, id) end
    table.sort(ids, before)
    for _, id in ipairs(ids) do
      local found = workflow.batch(id)
      if found then count_ending(id, found, changes[id]) end
    end
  end
end

function workflow.is_left()  -- whether earlier functions have left something
  tx.left = call('EXISTS', P .. 'unsettled', P .. 'stopping') > 0
  return tx.left
end

function workflow.run()
  tx.settled = tx.settled or 0
  hold_retried()
  if tx.left == nil then tx.left = not quiet() and workflow.is_left() end
  repeat
    while #tx.ran > 0 do
      local member = table.remove(tx.ran)
      hold_again(member, record.of(member), call('HGET', P .. 'out', member))
    end
    if tx.left then settle_left() end
    settle_sources()
    if tx.left then cancel_members() end
    local counts = next(tx.counted) ~= nil
    if counts then count_endings() end
  until not counts
  for at = (tx.settled_to or 0) + 1, #tx.sources do
    if call('EXISTS', P .. 'down:' .. tx.sources[at]) == 1 then
      leave_unsettled(tx.sources[at], '0')
      tx.left = true
    end
  end
  tx.settled_to = #tx.sources
  ordering.flush()
  if tx.left then workflow.is_left() end
end

function workflow.settle(but)  -- as settle does; a job that is leased directly may end at once
  repeat
    workflow.run()
    announce(but)
    tx.eligible, tx.changed = {}, {}
  until next(tx.counted) == nil and #tx.sources == tx.settled_to
  flush_batches()
  if tx.left then wake_all(1) end
end

-- Return whether a live job may still read the result of an ended one.
local function has_live_dependant(source)
  local known = tx.needed[source]
  if known == nil then
    known = false
    for _, member in ipairs(call('ZRANGE', P .. 'down:' .. source, 0, -1)) do
      if call('HEXISTS', P .. 'out', member) == 0 then
        known = true
        break
      end
    end
    tx.needed[source] = known
  end
  return known
end

function workflow.is_needed(rec)
  local flags = record.flags(rec)
  if band(flags, $job.SOURCE + $job.BATCH) == 0 then return false end
  if band(flags, $job.SOURCE) ~= 0 and has_live_dependant(record.id(rec)) then return true end
  local batch = record.extras(rec).batch
  local found = batch and workflow.batch(batch)
  return found and (not found.finished or has_live_dependant(batch))
end

function workflow.forget(member, rec)  -- with the job its edges and its place in a batch
  local flags = record.flags(rec)
  if band(flags, $job.WAITS) ~= 0 then
    for _, edge in ipairs(workflow.edges(member)) do call('ZREM', P .. 'down:' .. edge.source, member) end
    call('DEL', P .. 'up:' .. member)
  end
  local batch = record.extras(rec).batch
  local found = batch and workflow.batch(batch)
  if found then found.kept = call('HINCRBY', P .. 'b:' .. batch, 'kept', -1) end
end

local function is_over(id, kept_ms)  -- whether a batch need not be kept
  local found = workflow.batch(id)
  if not found then return true end
  if not found.finished or found.kept > 0 or found.finished + (found.total > 0 and 0 or kept_ms) > now then
    return false
  end
  return call('EXISTS', P .. 'kids:' .. id) == 0 and not has_live_dependant(id)
end

function workflow.prune_batches(kept_ms, most)  -- look at the ended batches that it has not looked at for longest
  for _, id in ipairs(call('ZRANGE', P .. 'over', 0, most - 1)) do
    if is_over(id, kept_ms) then
      local found = workflow.batch(id)
      if found and found.key then call('HDEL', P .. 'batch_keys', text(found.tenant or '') .. found.key) end
      if found and found.parent then call('SREM', P .. 'kids:' .. found.parent, id) end
      call('ZREM', P .. 'batches', id)
      call('DEL', P .. 'b:' .. id, P .. 'bm:' .. id)
      call('ZREM', P .. 'over', id)
      tx.batch[id] = false
    else
      call('ZADD', P .. 'over', num(now), id)
    end
  end
end
end
