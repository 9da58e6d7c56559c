import sys
monitoring = getattr(sys, "monitoring", None)
if monitoring:
    seen = []
    for tool in (monitoring.DEBUGGER_ID, monitoring.COVERAGE_ID, monitoring.PROFILER_ID, monitoring.OPTIMIZER_ID):
        print(tool, monitoring.get_tool(tool))
    monitoring.use_tool_id(monitoring.PROFILER_ID, "script")
    monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, lambda code, offset: seen.append(code.co_name))
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
    def work(): return 1
    work()
    monitoring.set_events(monitoring.PROFILER_ID, 0)
    monitoring.free_tool_id(monitoring.PROFILER_ID)
    print(seen)
