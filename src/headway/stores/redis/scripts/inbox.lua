-- inbox: jobs that were posted, each by one plain command, while nobody waited for jobs or watched them.
-- A posted job is an entry of the stream P..'in': its class behind its length, then its record from its flags on, which
-- are 0. Whatever function is called next takes it in before it does anything else, so nobody can tell the difference.
local POSTED = 100

local function read_posted(entries)  -- gives the jobs that are new; the others were sent again
  local jobs, ids, fresh, seen = {}, {}, {}, {}
  for i, entry in ipairs(entries) do
    local body = entry[2][2]
    local name, after = text_at(body, 1)
    local rec = sub(body, after)
    ids[i] = record.new_id(rec)
    jobs[i] = {class = name, record = rec, at = math.min(now, tonumber(string.match(entry[1], '%d+')) + ahead)}
  end
  local known = call('HMGET', P .. 'ids', unpack(ids))
  for i, id in ipairs(ids) do
    if not known[i] and not seen[id] then
      seen[id], jobs[i].id = true, id
      push(fresh, jobs[i])
    end
  end
  return fresh
end

local function keep_posted(fresh, minutes)  -- as submit does
  local seq, numbers, links, records = call('HINCRBY', P .. 'meta', 'seq', #fresh) - #fresh, {}, {}, {}
  for k, job in ipairs(fresh) do
    local minute = num(floor(job.at / 60000))
    minutes[minute] = (minutes[minute] or 0) + 1
    numbers[job.class] = numbers[job.class] or class.number(job.class)
    job.member, job.at15 = member_of(seq + k), fmt('%015d', job.at)
    job.record = $job{submitted = job.at15, class = numbers[job.class]} .. job.record
    push(links, job.id, job.member)
    push(records, job.member, job.record)
    push(tx.changed, job.id)
  end
  bulk('HSET', P .. 'job', records)
  bulk('HSET', P .. 'ids', links)
  for _, job in ipairs(fresh) do
    local number = numbers[job.class]
    if lines.clock(number) then
      lines.put(number, job.member, job.member, nil, job.at15, book.step(record.task(job.record), ''))
    else
      lines.append(number, job.member)
    end
  end
  lines.flush()
end

function take_in()
  local inbox, minutes = P .. 'in', {}
  while call('EXISTS', inbox) == 1 do
    local entries = call('XRANGE', inbox, '-', '+', 'COUNT', POSTED)
    local fresh = read_posted(entries)
    if #fresh > 0 then keep_posted(fresh, minutes) end
    local left = call('XLEN', inbox) - #entries
    if left > 0 then call('XTRIM', inbox, 'MAXLEN', left) else call('DEL', inbox) end
  end
  for minute, n in pairs(minutes) do add_up(minute, 'submitted', n) end
  settle()
  tx.eligible, tx.changed, tx.others = {}, {}, nil
end

-- take_in: let those who wait have what was posted.
-- args     none
-- returns  1
local function take_in_now(keys, args)
  begin(keys, args)
  return 1
end
