-- What a person does in Helix, with Neovim as the terminal:  nvim -l helix.lua FILE PYTHON OUT
local file, out = arg[1], arg[3]
local found = {}
local PATIENCE_MS, GLANCE_MS = 120000, 2000

vim.cmd.enew()
local job = vim.fn.jobstart({ vim.env.STEPSCOPE_HELIX, file }, { term = true })

local function screen() return vim.api.nvim_buf_get_lines(0, 0, -1, false) end

local function shown(pattern)
  for _, line in ipairs(screen()) do
    local match = line:match(pattern)
    if match then return match end
  end
end

local function wait(what, ready, patience_ms)
  if vim.wait(patience_ms or PATIENCE_MS, ready, 20) then return true end
  if patience_ms then return false end
  error("nothing came of " .. what .. ":\n" .. table.concat(screen(), "\n"))
end

-- Escape and a key that follows at once would be Alt and that key.
local function press(keys)
  vim.fn.chansend(job, "\27")
  vim.wait(200)
  vim.fn.chansend(job, keys)
end

-- Until something is there: what is pressed while a server starts is lost.
local function until_shown(keys, pattern)
  for _ = 1, PATIENCE_MS / GLANCE_MS do
    press(keys)
    if wait(pattern, function() return shown(pattern) end, GLANCE_MS) then return end
  end
  wait(pattern, function() return shown(pattern) end)
end

local function measured()
  wait("a measurement", function() return shown("samples/s at 32") end)
  found.state, found.message = "measured", shown("(%d+ samples/s at 32)")
end

local LINE = "(def stepscope_input_provider.-naïve guess)"
local SIZES = "Set batch size to %d+"

wait("the file", function() return shown(LINE) end)
until_shown(":20\r a", "Measure this file with stepscope")
vim.fn.chansend(job, "\r")
measured()
for _ = 1, 8 do -- sizes are offered only if the measurement predicts well, on a busy machine too
  until_shown(":20\r a", "Measure this file with stepscope")
  if shown(SIZES) then break end
  press(":lsp-workspace-command stepscope.measureFile\r")
  wait("the start of a measurement", function() return not shown("samples/s at 32") end)
  measured()
end
for _, value in ipairs({ "false", "true" }) do
  press(":toggle lsp.display-inlay-hints\r")
  wait("the toggle", function() return shown("now set to " .. value) end)
end
wait("hints", function() return shown("self%.body%(x%) +%d.*") end)
found.hints = { ["12"] = shown("self%.body%(x%) +(%d.*)") }

until_shown(":12\r k", "per step, ")
found.hover = table.concat(screen(), "\n")
for _ = 1, 4 do -- the rest of it
  vim.fn.chansend(job, "\4")
  vim.wait(200)
  found.hover = found.hover .. "\n" .. table.concat(screen(), "\n")
end
press("")

found.before = shown(LINE)
until_shown(":20\r a", SIZES)
vim.fn.chansend(job, "\r")
wait("an action", function() return shown(LINE) ~= found.before end)
found.after = shown(LINE)
press("u")
wait("undo", function() return shown(LINE) ~= found.after end)
found.undone = shown(LINE)
vim.fn.writefile({ vim.json.encode(found) }, out)
press(":q!\r")
vim.fn.jobwait({ job }, PATIENCE_MS)
vim.cmd("qall!")
