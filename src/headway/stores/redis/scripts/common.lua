-- common: what every function begins with, and how records are laid out.
--
-- KEYS[1] of every function is P..'meta', P being '{prefix:namespace}:', so that all keys share one slot of a cluster.
-- ARGV[1] is what a clock of a test says in milliseconds, or '' for the server's clock.
--
-- A job is known by its *member*: its sequence number plus BASE, in decimal. All have 16 digits, so they sort as text in
-- the order of their numbers, which breaks ties in sorted sets, and small sets of them are kept as sorted integers.
-- Order keys are kept plus BASE too, so in a line nobody shares a fresh job's member is also its score.
--
-- meta      hash  seq, rules, book, witnessed, turn, bottom
-- in        stream  jobs that were posted: see inbox.lua
-- ids       hash  job id -> member
-- job       hash  member -> record: what never changes about a job
-- lease     hash  member -> lease: a job that executes
-- again     hash  member -> back: a queued job that has a past, or was delayed
-- out       hash  member -> ending
-- tries     hash  member -> entries: attempts that did not complete
-- cancel, progress  hash  member -> moment / blob, of executing jobs
-- classes   hash  text -> number, with an f behind it if it is fair;  names  hash  number -> text;  clock  hash  number -> clock, of fair classes alone
-- w:C       zset  the line of class C by order key          a:C  zset  the same by age, if fair
-- live:C    zset  if fair: tenant, order key and member of all that wait or run, in the order of text
-- tr:C      list  transient jobs
-- due       zset  delayed jobs by moment                    late:C  set  those of a class
-- parked    hash  member -> moment and park                 p:C:X   zset  jobs of C in park X by order key
-- parks:C   hash  park -> S (shut), T (opens at a moment), or O and its first member (open)
-- open:C    zset  first member and park, by order key       timed  zset  C:X by the moment it opens
-- q:X       set   classes with a park X                     h:X  set  leases that count against limit X
-- rates     hash  limit -> how far ahead its starts were given away, in microseconds
-- unique    hash  key -> member;  idem  hash  scope -> until, digest, id;  idem_until  zset;  expiry  zset
-- workers   set   ids;  worker:W  hash, with lanes while it waits for jobs of these, and open, its claim, if a job may be
--                 handed over to it;  l:W  set  leases;  wait  zset  workers by turn
-- fin       list  completed jobs in the order they ended    bad:S, old:S  zset  other endings by number / by moment
-- doc:K     hash  name -> version and body;  m:M  hash  totals of a minute;  minutes  set  those;  tally  hash  all before
-- archive   string  exists while somebody archives;  arch  zset  ended jobs to be archived, by the moment they ended
-- stretch:C list  what a class waited for;  watched  string  exists while somebody watches
local fmt, sub, byte, floor, concat, band, pack  -- set by the first call: a library is loaded without Lua's own
local BASE, NONE, ZERO = 1e15, '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0', '000000000000000'
local TENANT, LIMITS, EXPIRES, UNIQUE, KEYED, TIMED, TRACE, TRANSIENT = 1, 2, 4, 8, 16, 32, 64, 128
local PASSED, PUMPED, COUNTED = 100, 200, 1000
local STATES = {C = 'completed', F = 'failed', X = 'cancelled', D = 'dead_letter', Q = 'queued', E = 'executing'}
local call, P, now, now15
local tx = {  -- what a call has read and gathered
  adds = {}, order = {}, clock = {}, last = {}, eligible = {}, counts = {}, changed = {}, names = {}, room = {}, reached = {},
  record = {},
}

-- clocks: of each namespace the store time, by the rule of core/policy/clock.py, as this server last knew it. What is
-- stored is read again when a second has passed or the clock has gone back: another server may have led meanwhile.
local clocks, ahead = {}, 0
local STEP, GAP, SLEW = 1000, 60000, 20

local function raw_ms()
  local t = call('TIME')
  return t[1] * 1000 + floor(t[2] / 1000)
end

local function step_clock(clock, raw)  -- gives the store time, how far it is ahead, and the moment that was reached
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
      -- A server that takes no writes now tells the time all the same.
      redis.pcall('HSET', P .. 'meta', 'ahead', fmt('%d', clock.ahead), 'reached', fmt('%d', clock.reached))
    end
  else
    clock.last = math.max(clock.last, (step_clock(clock, raw)))
  end
  ahead = clock.ahead
  return clock.last
end

local take_in  -- what was posted; see inbox.lua

local function begin(keys, args, inbox_later)
  if not call then
    fmt, sub, byte, floor, concat = string.format, string.sub, string.byte, math.floor, table.concat
    band, pack, call = bit.band, struct.pack, redis.call
  end
  P = sub(keys[1], 1, -5)
  now = read_clock(args[1] == '' and raw_ms() or tonumber(args[1]))  -- tests have a clock of their own
  now15 = fmt('%015d', now)
  for name, kept in pairs(tx) do  -- a table that the last call left empty serves again: garbage is what costs most
    if type(kept) ~= 'table' or name == 'book' or name == 'floor' then tx[name] = nil
    elseif next(kept) ~= nil then tx[name] = {} end
  end
  if not inbox_later and call('EXISTS', P .. 'in') == 1 then take_in() end
end

local function num(n) return fmt('%d', n) end

local function member_of(seq) return fmt('%d', BASE + seq) end

local function i4(text, at)
  local a, b, c, d = byte(text, at, at + 3)
  if not d then return 0 end  -- the text was cut
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

local MOST = 4000  -- arguments that a command is given at once

local function each(list, act)  -- call act with slices
  for i = 1, #list, MOST do act(unpack(list, i, math.min(i + MOST - 1, #list))) end
end

local function bulk(command, key, list)  -- one command for all, if there are any
  local n = #list
  if n == 0 then return end
  if n <= MOST then
    call(command, key, unpack(list))
  else
    each(list, function(...) call(command, key, ...) end)
  end
end

local function texts(packed)  -- a list of texts, each behind its length
  local found, at = {}, 1
  while at <= #packed do
    local n = i2(packed, at)
    push(found, sub(packed, at + 2, at + 1 + n))
    at = at + 2 + n
  end
  return found
end

local function text(value) return pack('>I2', #value) .. value end

local function before(a, b)  -- by bytes, whatever the server's locale says
  local n = math.min(#a, #b)
  for i = 1, n do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- Most of the time nothing is delayed, parked, retried, archived, cancelled or in progress; one look shows it.
local RARE = {'again', 'archive', 'cancel', 'due', 'parked', 'progress', 'timed'}

local function quiet()
  if tx.quiet == nil then
    local keys = {}
    for i, name in ipairs(RARE) do keys[i] = P .. name end
    tx.quiet = call('EXISTS', unpack(keys)) == 0
  end
  return tx.quiet
end

local function stir() tx.quiet = false end  -- something of the kind was written

local function count(what, n)
  if n ~= 0 then tx.counts[what] = (tx.counts[what] or 0) + n end
end

-- record: submitted(15) class(4) flags(1) id length(1) id tail length(4) extras body tail;  tail: task behind its length,
-- payload. Extras are there as the flags say, in their order. Lua never reads the body or the payload.
-- A record may be missing (false), cut or overwritten: these functions read what there is and never fail. Whoever gets the
-- lease sees the damage, and ends the job as a dead letter.
local record = {}

function record.class(rec) return i4(rec or '', 16) end

function record.id(rec) return sub(rec or '', 22, 21 + (byte(rec or '', 21) or 0)) end

function record.tail(rec)
  local at = 22 + (byte(rec or '', 21) or 0)
  return sub(rec or '', -i4(rec or '', at))
end

function record.task(rec)
  rec = rec or ''
  local at = #rec - i4(rec, 22 + (byte(rec, 21) or 0)) + 1
  return sub(rec, at + 2, at + 1 + i2(rec, at))
end

function record.flags(rec) return byte(rec or '', 20) or 0 end

function record.since(rec)  -- when it was submitted, as 15 digits
  local at15 = sub(rec or '', 1, 15)
  return #at15 == 15 and string.find(at15, '^%d+$') and at15 or now15
end

function record.extras(rec)
  local flags, found = record.flags(rec), {}
  if flags == 0 then return found end
  local at = 26 + (byte(rec, 21) or 0)
  if flags == TENANT then  -- the usual one, and there are many
    found.tenant = sub(rec, at + 2, at + 1 + i2(rec, at))
    return found
  end
  local function take()
    local n = i2(rec, at)
    at = at + 2 + n
    return sub(rec, at - n, at - 1)
  end
  local function number()
    at = at + 15
    return tonumber(sub(rec, at - 15, at - 1))
  end
  if band(flags, TENANT) ~= 0 then found.tenant = take() end
  if band(flags, LIMITS) ~= 0 then found.limits = texts(take()) end
  if band(flags, EXPIRES) ~= 0 then found.expires_ms = number() end
  if band(flags, UNIQUE) ~= 0 then found.unique = take() end
  if band(flags, KEYED) ~= 0 then found.key, found.digest, found.key_ms = take(), take(), number() end
  if band(flags, TIMED) ~= 0 then found.due, found.delay = number(), number() end
  return found
end

function record.of(member)
  local rec = tx.record[member]
  if rec == nil then
    rec = call('HGET', P .. 'job', member)
    tx.record[member] = rec
  end
  return rec
end

-- lease: token(16) epoch(4) attempts(2) crashes(2) started(15) eligible(15) class(4) order key(16) timeout(6) flags(1),
-- worker; with flag 2 (its class is fair) its tenant; with flag 4 assigned, parked for, parked ms, held limits.
-- Flag 1: it has a unique key; flag 8: it no longer expires.
-- back: token(16) epoch(4) attempts(2) crashes(2) eligible(15) due(15) class(4) order key(16) timeout(6) flags(1) blob;
-- flag 1: it no longer expires.  A timeout of 0 is the one that was asked for.
local lease = {}

function lease.epoch(held) return i4(held, 17) end

function lease.class(held) return i4(held, 55) end

function lease.key(held) return sub(held, 59, 74) end

function lease.rest(held)
  local flags, at, found = byte(held, 81) or 0, 82, {}
  local function take()
    local n = i2(held, at)
    at = at + 2 + n
    return sub(held, at - n, at - 1)
  end
  found.worker = take()
  if band(flags, 2) ~= 0 then found.tenant = take() end
  if band(flags, 4) ~= 0 then
    found.assigned, found.parked_for, found.parked_ms = take(), take(), take()
    found.held = texts(sub(held, at))
  end
  return found
end

function lease.assign(held, assigned)  -- the same lease with another rung
  local rest, tail = lease.rest(held), ''
  tail = text(rest.worker) .. (rest.tenant and text(rest.tenant) or '')
  tail = tail .. text(assigned) .. text(rest.parked_for or '') .. text(rest.parked_ms or '')
  for _, key in ipairs(rest.held or {}) do tail = tail .. text(key) end
  local flags = byte(held, 81)
  if band(flags, 4) == 0 then flags = flags + 4 end
  return sub(held, 1, 80) .. string.char(flags) .. tail
end

local function back_of(token, epoch, attempts, crashes, eligible, due, class, key, timeout_ms, flags, blob)
  return token .. pack('>I4I2I2', epoch, attempts, crashes) .. fmt('%015d', eligible) .. fmt('%015d', due)
    .. pack('>I4', class) .. key .. pack('>I6', timeout_ms) .. string.char(flags) .. blob
end

-- Classes.  text: lane, rung ('' for none), 1 if persistent, needs; behind one another with a NUL between.
local class = {}

function class.known(name)  -- the number of a class, or nil
  local known = call('HGET', P .. 'classes', name)
  if not known then return nil end
  if byte(known, -1) == 102 then return tonumber(sub(known, 1, -2)) end
  local number = tonumber(known)
  tx.clock[number] = tx.clock[number] or false  -- nobody shares it, so it has no clock to look for
  return number
end

function class.number(name)  -- a new one becomes known
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

function class.all()  -- numbers of all classes that have been made
  return call('HLEN', P .. 'classes')
end

-- Telling: workers that wait, whoever watches jobs, totals.
local function ring(name) call('PUBLISH', P .. 'ear:' .. name, '') end

local function watched()
  if tx.watched == nil then tx.watched = call('EXISTS', P .. 'watched') == 1 end
  return tx.watched
end

local function tell(ids)
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

local function no_wait(worker)
  call('ZREM', P .. 'wait', worker)
  call('HDEL', P .. 'worker:' .. worker, 'lanes', 'open')
end

local hand_over  -- a job that was submitted alone, to a worker that waits with an open claim; gives whether it was

local function wake(but)  -- a waiting worker for each job that became eligible, as far as one can serve it
  local waiting = call('ZRANGE', P .. 'wait', 0, -1)
  if #waiting == 0 then return end
  local facts, nobody = {}, {}
  for _, number in ipairs(tx.eligible) do
    if not nobody[number] then
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
            if not (tx.alone and fact.open and hand_over(id, fact, number)) then
              no_wait(id)
              ring(id)
            end
            waiting[i] = false
            found = true
            break
          end
        end
      end
      if not found then nobody[number] = true end
    end
  end
end

local function wake_all()
  for _, id in ipairs(call('ZRANGE', P .. 'wait', 0, -1)) do
    local ends = call('HGET', P .. 'worker:' .. id, 'ends')
    if ends and tonumber(ends) > now then
      no_wait(id)
      ring(id)
    end
  end
end

local function add_up(minute, what, n)  -- to a total of a minute
  if call('HINCRBY', P .. 'm:' .. minute, what, num(n)) == n then call('SADD', P .. 'minutes', minute) end
end

local function settle(but)  -- the last step of whatever changed something
  if #tx.eligible + #tx.changed > 0 then
    if tx.others == nil then tx.others = call('EXISTS', P .. 'wait', P .. 'watched') > 0 end
    if tx.others then
      if #tx.eligible > 0 then wake(but) end
      if #tx.changed > 0 and watched() then tell(tx.changed) end
    end
  end
  local minute = num(floor(now / 60000))
  for what, n in pairs(tx.counts) do add_up(minute, what, n) end
end
