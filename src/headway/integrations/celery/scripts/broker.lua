-- broker: the messages of a broker on the same server, to correct the ledger.

local function member_of(message)
  local headers = type(message) == 'table' and message.headers
  if type(headers) ~= 'table' or type(headers.id) ~= 'string' then return nil end
  return headers.id .. '/' .. (tonumber(headers.retries) or 0), tostring(headers.task or '')
end

-- listed: a page of the messages in a queue.
-- args     key of the list, from, to
-- returns  how long the list is, then of each message: member, task name
local function listed(keys, args)
  begin(keys)
  local found = {call('LLEN', args[1])}
  for _, text in ipairs(call('LRANGE', args[1], args[2], args[3])) do
    local fine, message = pcall(cjson.decode, text)
    local member, name = nil, nil
    if fine then member, name = member_of(message) end
    if member then
      found[#found + 1] = member
      found[#found + 1] = name
    end
  end
  return found
end

-- unacked: a page of the messages that workers hold and have not acknowledged.
-- args     key of the hash, cursor
-- returns  the next cursor, then of each message: member, task name, queue
local function unacked(keys, args)
  begin(keys)
  local page = call('HSCAN', args[1], args[2], 'COUNT', 200)
  local found = {page[1]}
  for i = 2, #page[2], 2 do
    local fine, held = pcall(cjson.decode, page[2][i])
    local member, name = nil, nil
    if fine and type(held) == 'table' then member, name = member_of(held[1]) end
    if member and type(held[3]) == 'string' then
      found[#found + 1] = member
      found[#found + 1] = name
      found[#found + 1] = held[3]
    end
  end
  return found
end

-- known: which members wait.
-- args     members
-- returns  1 or 0 for each
local function known(keys, args)
  begin(keys)
  local found = {}
  for i, member in ipairs(args) do found[i] = call('HEXISTS', P .. ':task', member) end
  return found
end

-- adopt: count tasks as waiting that the broker has and no sender counted.
-- args     of each: member, queue, name, user
-- returns  how many did not wait before
local function adopt(keys, args)
  begin(keys)
  local adopted = 0
  for i = 1, #args, 4 do
    if call('HEXISTS', P .. ':task', args[i]) == 0 then
      enter(args[i], args[i + 1], args[i + 2], args[i + 3])
      adopted = adopted + 1
    end
  end
  tally('adopted', adopted)
  settle()
  return adopted
end
