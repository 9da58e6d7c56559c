import sys
m = getattr(sys, "monitoring", None)
if m:
    free = [t for t in range(6) if m.get_tool(t) is None]
    for t in free: m.use_tool_id(t, f"t{t}")
    print(free, [m.get_tool(t) for t in range(6)], [m.get_events(t) for t in range(6)])
    calls = []
    m.register_callback(free[0], m.events.PY_START, lambda code, o: calls.append(code.co_name))
    m.set_events(free[0], m.events.PY_START)
    def f(): pass
    f(); f(); m.set_events(free[0], 0); print(calls)
