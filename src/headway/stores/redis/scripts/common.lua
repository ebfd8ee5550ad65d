-- common: the start of every function, the keys of a namespace, and helpers.
--
-- KEYS[1] of every function is P..'meta'. P is '{prefix:namespace}:', so that all keys share one slot of a cluster.
-- ARGV[1] is the time in milliseconds from the clock of a test, or '' for the clock of the server.
--
-- A job is known by its *member*: its sequence number plus BASE, in decimal. All members have 16 digits, so they sort
-- as text in the order of their numbers. This breaks ties in sorted sets, and Redis keeps small sets of them as sorted
-- integers. Order keys are stored plus BASE too. In a class without tenants, the member of a new job is also its score.
--
-- layout.py has the byte layouts of the records. In the following, C is the number of a class and X the key of a limit.
--
-- meta      hash    seq, rules, book, witnessed, turn, bottom, ahead, reached, format, oldest_reader, oldest_writer
-- in        stream  deferred submits: see deferred_submit.lua
-- ids       hash    job id -> member
-- job       hash    member -> job: what never changes
-- lease     hash    member -> lease, of a job that executes
-- again     hash    member -> requeue, of a queued job that ran before or was delayed
-- out       hash    member -> outcome
-- tries     hash    member -> attempts that did not complete
-- cancel    hash    member -> moment of the request, of an executing job
-- progress  hash    member -> blob, of an executing job
-- classes   hash    text -> number, followed by an f if tenants share the class;  names  hash  number -> text
-- clock     hash    number -> virtual time, of a class that tenants share
-- w:C       zset    queued jobs by order key;  a:C  zset  the same by age, if tenants share the class
-- live:C    zset    shares: jobs that wait or run, by tenant and order key, if tenants share the class
-- tr:C      list    transient jobs
-- due       zset    delayed jobs by moment;  late:C  set  those of a class;  held:C  set  held jobs of a class
-- up:M      hash    of a job with edges: > and the id of a source -> edge; left, how many are not satisfied; back;
--                   again, if a new round began while the callback ran
-- down:S    zset    dependants of a source, which is the id of a job or a batch, by number
-- unsettled list    sources whose edges are not all settled;  reached  hash  source -> number of the last dependant
-- b:B       hash    a batch: see workflow.lua;  kids:B  set  its child batches
-- bm:B      zset    the members of a batch as ranges: the first member of each by the number of the last
-- batches   zset    batches by number;  over  zset  ended ones by last look;  batch_keys  hash  scope -> batch
-- stopping  list    cancelled batches of which not all members are cancelled
-- kept      zset    completed jobs by moment that prune met while a live job needed them
-- steps     hash    member -> steps;  st:M  hash  key -> step
-- parked    hash    member -> blocked;  p:C:X  zset  jobs blocked by a limit, by order key
-- parks:C   hash    limit -> S (closed), T (opens at a moment), or O and the first member (open)
-- open:C    zset    blocked_head of each open limit by order key;  timed  zset  C:X by the moment it opens
-- h:X       set     leases that the limit counts
-- rates     hash    limit -> the moment up to which starts are used up, in microseconds
-- unique    hash    unique key -> member
-- idem      hash    idempotency scope -> idempotency;  idem_until  zset  scopes by the moment they expire
-- expiry    zset    members by the moment they expire
-- workers   set     ids;  l:W  set  leases of a worker;  wait  zset  idle workers by turn
-- worker:W  hash    a worker; lanes while it is idle, and open, its claim, if the server may lease a job to it directly
-- fin       list    completed: the jobs that completed, in order
-- bad:S     zset    jobs with another outcome by number;  old:S  zset  the same by moment
-- doc:K     hash    name -> version and body
-- m:M       hash    totals of a minute;  minutes  set  those minutes;  tally  hash  totals of all minutes before
-- archive   string  exists while an archiver runs;  arch  zset  jobs to be archived by the moment they ended
-- stretch:C list    wait_intervals of a class
-- watched   string  exists while a client watches jobs
local fmt, sub, byte, floor, concat, band, pack  -- set by the first call: none is there when the library is loaded
local BASE, NONE, ZERO = 1e15, '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0', '000000000000000'
local SKIPPED_MAX, DUE_BATCH_MAX, WAITING_COUNT_MAX, SETTLED_MAX = 100, 200, 1000, 100
local STATES = {C = 'completed', F = 'failed', X = 'cancelled', D = 'dead_letter', Q = 'queued', E = 'executing'}
local call, P, now, now15
local tx = {  -- what the current call has read and changed
  adds = {}, order = {}, clock = {}, last = {}, eligible = {}, counts = {}, changed = {}, names = {}, room = {},
  reached = {}, record = {}, holds = {}, held = {}, started = {}, sources = {}, touched = {}, status = {},
  needed = {}, ran = {}, retried = {}, batch = {}, counted = {}, dirty = {},
}

-- The store time of each namespace, by the rule of core/policy/clock.py. The stored part is read again when a second
-- has passed or the clock has gone back, because another server may have been the master in between.
local clocks, ahead = {}, 0
local STEP, GAP, SLEW = 1000, 60000, 20

local function raw_ms()
  local t = call('TIME')
  return t[1] * 1000 + floor(t[2] / 1000)
end

local function step_clock(clock, raw)  -- return the store time, how far it is ahead, and the moment that was reached
  local at = raw + clock.ahead
  local passed = at - clock.reached
  if passed >= 0 and passed <= STEP then return at, clock.ahead, clock.reached end
  if passed < -STEP then return clock.reached + STEP, clock.reached + STEP - raw, clock.reached + STEP end
  if passed < 0 then return clock.reached, clock.ahead, clock.reached end
  local back = math.min(clock.ahead, passed > GAP and passed - STEP or floor(passed / SLEW))
  return at - back, clock.ahead - back, at - back
end

local function read_clock(raw)
  local clock = clocks[P]
  if not clock then
    clock = {raw = -1, last = 0}
    clocks[P] = clock
  end
  if raw < clock.raw or raw >= clock.raw + STEP then
    local stored = call('HMGET', P .. 'meta', 'ahead', 'reached')
    local before = {ahead = tonumber(stored[1] or 0), reached = math.max(tonumber(stored[2] or 0), clock.reached or 0)}
    clock.raw, clock.last, clock.ahead, clock.reached = raw, step_clock(before, raw)
    if clock.ahead ~= before.ahead or clock.reached ~= tonumber(stored[2] or 0) then
      -- A server that refuses writes can still tell the time.
      redis.pcall('HSET', P .. 'meta', 'ahead', fmt('%d', clock.ahead), 'reached', fmt('%d', clock.reached))
    end
  else
    clock.last = math.max(clock.last, (step_clock(clock, raw)))
  end
  ahead = clock.ahead
  return clock.last
end

local apply_deferred  -- in deferred_submit.lua

local function begin(keys, args, without_deferred)
  if not call then
    fmt, sub, byte, floor, concat = string.format, string.sub, string.byte, math.floor, table.concat
    band, pack, call = bit.band, struct.pack, redis.call
  end
  P = sub(keys[1], 1, -5)
  now = read_clock(args[1] == '' and raw_ms() or tonumber(args[1]))
  now15 = fmt('%015d', now)
  for name, kept in pairs(tx) do  -- a table that the last call left empty is used again: garbage costs the most
    if type(kept) ~= 'table' or name == 'rule_index' or name == 'running_jobs' then tx[name] = nil
    elseif next(kept) ~= nil then tx[name] = {} end
  end
  if not without_deferred and call('EXISTS', P .. 'in') == 1 then apply_deferred() end
end

local function num(n) return fmt('%d', n) end

local function member_of(seq) return fmt('%d', BASE + seq) end

local function i4(text, at)
  local a, b, c, d = byte(text, at, at + 3)
  if not d then return 0 end  -- the record is cut
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function i2(text, at)
  local a, b = byte(text, at, at + 1)
  if not b then return 0 end
  return a * 256 + b
end

local function push(list, a, b)
  list[#list + 1] = a
  if b ~= nil then list[#list + 1] = b end
end

local ARGUMENTS_MAX = 4000  -- of one command: Lua's stack has room for about 8,000

local function each(list, act)  -- call act with slices of the list
  for i = 1, #list, ARGUMENTS_MAX do act(unpack(list, i, math.min(i + ARGUMENTS_MAX - 1, #list))) end
end

local function bulk(command, key, list)  -- one command for the whole list, unless it is empty
  local n = #list
  if n == 0 then return end
  if n <= ARGUMENTS_MAX then
    call(command, key, unpack(list))
  else
    each(list, function(...) call(command, key, ...) end)
  end
end

local function from(args, at)  -- the arguments from a place on; unpack could overflow Lua's stack
  local found = {}
  for i = at, #args do found[i - at + 1] = args[i] end
  return found
end

local function fields_of(key, names)  -- the values of these fields of a hash, or false for each that does not exist
  if #names <= ARGUMENTS_MAX then return #names > 0 and call('HMGET', key, unpack(names)) or {} end
  local found = {}
  each(names, function(...)
    for _, value in ipairs(call('HMGET', key, ...)) do push(found, value) end
  end)
  return found
end

local function members_of(ids) return fields_of(P .. 'ids', ids) end

local function gather(lists, name, value)  -- add to one of several lists
  local list = lists[name]
  if list then list[#list + 1] = value else lists[name] = {value} end
end

-- The same, but a single value is no list, since most names have only one. names: all names in order.
local function gather_few(lists, names, name, value)
  local list = lists[name]
  if not list then lists[name], names[#names + 1] = value, name
  elseif type(list) == 'table' then list[#list + 1] = value
  else lists[name] = {list, value} end
end

local function bulk_few(command, names, lists)  -- one command for each name, with what ``gather_few`` gathered
  for i = 1, #names do
    local name = names[i]
    local list = lists[name]
    if type(list) == 'table' then bulk(command, name, list) else call(command, name, list) end
  end
end

local function text(value) return pack('>I2', #value) .. value end

local function text_at(packed, at)  -- return the text behind its length, and the place after it
  local high, low = byte(packed, at, at + 1)
  local after = at + 2 + (low and high * 256 + low or 0)  -- as i2 reads it
  return sub(packed, at + 2, after - 1), after
end

local function texts(packed)
  local found, at = {}, 1
  while at <= #packed do found[#found + 1], at = text_at(packed, at) end
  return found
end

local function before(a, b)  -- by bytes; Lua's own comparison depends on the locale of the server
  local n = math.min(#a, #b)
  for i = 1, n do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- Most of the time no job is delayed, blocked, requeued, archived, cancelled or in progress. One command shows it.
local RARE = {'again', 'archive', 'cancel', 'due', 'parked', 'progress', 'stopping', 'timed', 'unsettled'}

local function quiet()
  if tx.quiet == nil then
    local keys = {}
    for i, name in ipairs(RARE) do keys[i] = P .. name end
    tx.quiet = call('EXISTS', unpack(keys)) == 0
  end
  return tx.quiet
end

local function not_quiet() tx.quiet = false end  -- the call itself has written one of these keys

local function count(what, n)
  if n ~= 0 then tx.counts[what] = (tx.counts[what] or 0) + n end
end

-- record: a job's record, whose layout is in layout.py with all others. It may be missing (false), cut or overwritten.
-- These functions read what there is and never fail. The worker that gets the lease reports the job as a dead letter.
local record = {}

function record.class(rec) return $job.class(rec or '') end

function record.after_id(rec) return $job.size + 1 + ($job.id_length(rec) or 0) end

function record.new_id(rec)  -- of a record as a client sends it
  return sub(rec, $new_job.size + 1, $new_job.size + $new_job.id_length(rec))
end

function record.id(rec) return sub(rec or '', $job.size + 1, record.after_id(rec or '') - 1) end

function record.tail(rec)
  rec = rec or ''
  return sub(rec, -i4(rec, record.after_id(rec)))
end

local last_name, last_task = '\0\0', ''  -- the task of the last job, behind its length and alone: most jobs have it too

function record.task(rec, after_id)
  rec = rec or ''
  local start = #rec - i4(rec, after_id or record.after_id(rec)) + 1
  local stop = start + #last_name - 1
  if sub(rec, start, stop) ~= last_name then
    last_task = text_at(rec, start)
    last_name = text(last_task)
  end
  return last_task
end

function record.without_payload(rec)  -- or as it is, if it is cut
  local at = record.after_id(rec)
  local start = #rec - i4(rec, at) + 1
  if start < at + 4 or start > #rec - 1 then return rec end
  local name, after = text_at(rec, start)
  if after > #rec + 1 then return rec end
  return sub(rec, 1, at - 1) .. pack('>I4', 2 + #name) .. sub(rec, at + 4, after - 1)
end

function record.flags(rec) return $job.flags(rec or '') or 0 end

function record.since(rec)  -- the moment it was submitted, as 15 digits
  local since = $job.submitted(rec or '')
  return #since == #ZERO and string.find(since, '^%d+$') and since or now15
end

function record.extras(rec)
  local flags, found = record.flags(rec), {}
  if flags == 0 then return found end
  local at = record.after_id(rec) + 4  -- behind the length of the tail
  if flags == $job.TENANT then  -- the most frequent case, without closures
    found.tenant = text_at(rec, at)
    return found
  end
  local function take()
    local value
    value, at = text_at(rec, at)
    return value
  end
  local function number()
    at = at + #ZERO
    return tonumber(sub(rec, at - #ZERO, at - 1))
  end
  if band(flags, $job.TENANT) ~= 0 then found.tenant = take() end
  if band(flags, $job.LIMITS) ~= 0 then take() end
  if band(flags, $job.BATCH) ~= 0 then found.batch = take() end
  if band(flags, $job.EXPIRES) ~= 0 then found.expires_ms = number() end
  if band(flags, $job.UNIQUE) ~= 0 then found.unique = take() end
  if band(flags, $job.KEYED) ~= 0 then found.key, found.digest, found.key_ms = take(), take(), number() end
  if band(flags, $job.TIMED) ~= 0 then found.due, found.delay = number(), number() end
  return found
end

-- Return the tenant behind its length, the keys of its own limits as one text, and the batch, or nil for each.
function record.sharing(rec, flags, after_id)
  if flags == 0 then return nil, nil, nil end
  local at, tenant, keys, batch = (after_id or record.after_id(rec)) + 4, nil, nil, nil
  if flags <= $job.BATCH then  -- the frequent cases, of which some have a single text, need no further call
    local high, low = byte(rec, at, at + 1)
    local stop = low and at + 1 + high * 256 + low or at + 1
    if flags == $job.TENANT then return sub(rec, at, stop), nil, nil end
    if flags == $job.LIMITS then return nil, sub(rec, at + 2, stop), nil end
    if flags == $job.BATCH then return nil, nil, sub(rec, at + 2, stop) end
  end
  if band(flags, $job.TENANT) ~= 0 then
    local after = at + 2 + i2(rec, at)
    tenant, at = sub(rec, at, after - 1), after
  end
  if band(flags, $job.LIMITS) ~= 0 then keys, at = text_at(rec, at) end
  if band(flags, $job.BATCH) ~= 0 then batch = text_at(rec, at) end
  return tenant, keys, batch
end

function record.of(member)
  local rec = tx.record[member]
  if rec == nil then
    rec = call('HGET', P .. 'job', member)
    tx.record[member] = rec
  end
  return rec
end

local lease = {}

function lease.rest(held)  -- the part after the fields
  local flags, at, found = $lease.flags(held) or 0, $lease.size + 1, {}
  found.worker, at = text_at(held, at)
  if band(flags, $lease.FAIR) ~= 0 then found.tenant, at = text_at(held, at) end
  if band(flags, $lease.BATCH) ~= 0 then found.batch, at = text_at(held, at) end
  if band(flags, $lease.TERMS) ~= 0 then
    found.assigned, at = text_at(held, at)
    found.blocked_for, at = text_at(held, at)
    found.blocked_ms, at = text_at(held, at)
    found.held = texts(sub(held, at))
  end
  return found
end

function lease.with_terms(held, rest)  -- the same lease with another rung or other limits
  local tail = text(rest.worker) .. (rest.tenant and text(rest.tenant) or '') .. (rest.batch and text(rest.batch) or '')
  tail = tail .. text(rest.assigned or '') .. text(rest.blocked_for or '') .. text(rest.blocked_ms or '')
  for _, key in ipairs(rest.held or {}) do tail = tail .. text(key) end
  return $lease[..flags](held) .. $lease{flags = bit.bor($lease.flags(held), $lease.TERMS)} .. tail
end

-- Classes. The text is lane, rung ('' for none), 1 if persistent, and needs, separated by NUL.
local class = {}

function class.known(name)  -- the number of a class, or nil
  local known = call('HGET', P .. 'classes', name)
  if not known then return nil end
  if sub(known, -1) == 'f' then return tonumber(sub(known, 1, -2)) end
  local number = tonumber(known)
  tx.clock[number] = tx.clock[number] or false  -- no tenants share it, so it has no clock
  return number
end

function class.number(name)  -- the same; a new class gets a number
  local number = class.known(name)
  if not number then
    number = call('HLEN', P .. 'classes') + 1
    call('HSET', P .. 'classes', name, num(number))
    call('HSET', P .. 'names', num(number), name)
  end
  return number
end

function class.parts(number, text_)
  local found = tx.names[number]
  if not found then
    local name = text_ or call('HGET', P .. 'names', num(number)) or ''
    found = {name = name, needs = {}}
    local at, place = 1, 0
    while at <= #name + 1 do
      local stop = string.find(name, '\0', at, true) or #name + 1
      local part = sub(name, at, stop - 1)
      place = place + 1
      if place == 1 then found.lane = part
      elseif place == 2 then found.rung = part
      elseif place == 3 then found.persist = part == '1'
      else push(found.needs, part) end
      at = stop + 1
    end
    tx.names[number] = found
  end
  return found
end

function class.all()  -- the highest number of a class
  return call('HLEN', P .. 'classes')
end

-- Notifications of idle workers and of clients that watch jobs, and totals.
local function notify(name) call('PUBLISH', P .. 'ear:' .. name, '') end

local function watched()
  if tx.watched == nil then tx.watched = call('EXISTS', P .. 'watched') == 1 end
  return tx.watched
end

local function notify_watchers(ids)
  if #ids > 0 then call('PUBLISH', P .. 'watch', concat(ids, '\n')) end
end

local function serves(needs, offers)
  for _, need in ipairs(needs) do
    if not offers[need] and not (offers['task:*'] and sub(need, 1, 5) == 'task:') then return false end
  end
  return true
end

local function split(joined)
  local found = {}
  for part in string.gmatch(joined, '[^%z]+') do found[part] = true end
  return found
end

local function clear_idle(worker)
  call('ZREM', P .. 'wait', worker)
  call('HDEL', P .. 'worker:' .. worker, 'lanes', 'open')
end

local lease_directly  -- in exchange.lua

local function wake(but)  -- one idle worker that can serve it for each job that became eligible
  local waiting = call('ZRANGE', P .. 'wait', 0, -1)
  if #waiting == 0 then return end
  local facts, unserved = {}, {}
  for _, number in ipairs(tx.eligible) do
    if not unserved[number] then
      local key, found = class.parts(number), false
      for i, id in ipairs(waiting) do
        if id and id ~= but then
          local fact = facts[id]
          if not fact then
            local row = call('HMGET', P .. 'worker:' .. id, 'ends', 'offers', 'lanes', 'open', 'slots')
            fact = {
              live = row[1] and tonumber(row[1]) > now, offers = split(row[2] or ''),
              lanes = row[3] and row[3] ~= '*' and split(row[3]), open = row[4], slots = row[5],
            }
            facts[id] = fact
          end
          if fact.live and (not fact.lanes or fact.lanes[key.lane]) and serves(key.needs, fact.offers) then
            if not (tx.alone and fact.open and lease_directly(id, fact, number)) then
              clear_idle(id)
              notify(id)
            end
            waiting[i] = false
            found = true
            break
          end
        end
      end
      if not found then unserved[number] = true end
    end
  end
end

local function wake_all(most)  -- or this many, whatever they offer
  local woken = 0
  for _, id in ipairs(call('ZRANGE', P .. 'wait', 0, -1)) do
    local ends = call('HGET', P .. 'worker:' .. id, 'ends')
    if ends and tonumber(ends) > now then
      clear_idle(id)
      notify(id)
      woken = woken + 1
      if woken == most then return end
    end
  end
end

local function add_to_minute(minute, what, n)
  if call('HINCRBY', P .. 'm:' .. minute, what, num(n)) == n then call('SADD', P .. 'minutes', minute) end
end

local workflow = {}  -- in workflow.lua

local function announce(but)  -- wake workers for what became eligible, and notify clients of what changed
  if #tx.eligible + #tx.changed > 0 then
    if tx.listeners == nil then tx.listeners = call('EXISTS', P .. 'wait', P .. 'watched') > 0 end
    if tx.listeners then
      if #tx.eligible > 0 then wake(but) end
      if #tx.changed > 0 and watched() then notify_watchers(tx.changed) end
    end
  end
end

local function settle(but)  -- the last step of a function that changes jobs: notify and add to the totals
  if tx.flow then workflow.settle(but) else announce(but) end
  local minute = num(floor(now / 60000))
  for what, n in pairs(tx.counts) do add_to_minute(minute, what, n) end
end
