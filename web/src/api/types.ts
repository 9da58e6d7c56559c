/** The answers of the server as `docs/web_api.md` describes them. Times are ns, means a step ms. */

export interface TraceEntry {
  id: string;
  name: string;
  path: string;
  state: "loading" | "ready" | "failed";
  progress: number;
  message: string;
}

export interface Traces {
  version: string;
  perfetto: string | null;
  traces: TraceEntry[];
}

export interface StepRow {
  id: string;
  step: number;
  rank: number;
  start_ns: number;
  end_ns: number;
  runtime_ns: number;
  device_busy_ns: number;
}

export interface StageFacts {
  stage: string;
  cpu_ms: number;
  device_ms: number;
  share: number;
  bound_by: string;
}

export interface DeviceFacts {
  device: number;
  name: string;
  window_ms: number;
  computing_ms: number;
  idle_ms: Record<string, number>;
  communication_ms: number;
  overlapped_ms: number;
}

export interface Warning {
  rank: number;
  code: string;
  message: string;
  count: number;
}

export interface EfficiencyFacts {
  flops: number;
  repeated_flops: number;
  known: number;
  tflops: number;
  busy_tflops: number | null;
  gpu: string;
  peak_tflops: Record<string, number>;
  mfu: number | null;
  hfu: number | null;
  busy_utilisation: number | null;
}

export interface Facts {
  source: string;
  framework: string;
  rank: number;
  world_size: number;
  steps: {
    numbers: number[];
    evidence: string;
    mean_ms: number;
    median_ms: number;
    min_ms: number;
    max_ms: number;
    std_ms: number;
    /** A first step that is left out of all means, as it takes far longer than the others. */
    warm_up: { step: number; ms: number } | null;
  };
  verdict: { bound_by: string; share: number; sentence: string };
  stages: StageFacts[];
  devices: DeviceFacts[];
  /** What matrix products, convolutions and attention come to; null where no shapes tell. */
  efficiency: EfficiencyFacts | null;
  kinds: Record<string, number>;
  kernels_are: string;
  modules_evidence: string;
  data_wait_ms: number;
  parameters: number | null;
  parameter_bytes: number | null;
  peak_memory_bytes: Record<string, number>;
  capture: Record<string, unknown>;
  warnings: Warning[];
}

export interface Overview {
  start: string;
  rank: number;
  ranks: number[];
  steps: StepRow[];
  has: { device: boolean; modules: boolean; memory: boolean; source: boolean; contexts: boolean };
  /** null where no step was recorded: `why` says so. */
  facts: Facts | null;
  why: string;
  warnings: Warning[];
}

export interface ResourceRow {
  id: number;
  kind: string;
  name: string;
  rank: number;
  busy_ns: number;
  shown: boolean;
}

export interface WireLevel {
  path: string;
  name: string;
  through: string[];
  start_ns: number;
  length_ns: number;
  shift_ns: number;
  passed: number;
  hidden: number;
  resources: ResourceRow[];
  operations: {
    id: string[];
    name: number[];
    kind: number[];
    resource: number[];
    start_ns: number[];
    end_ns: number[];
    cpu_ns: number[];
    self_ns: number[];
    recompute_ns: number[];
    device_ns: number[];
    bound_by: number[];
    events: number[];
    event: number[];
    module: number[];
    recompute: number[];
    forward: number[];
    backward: number[];
    launch: number[];
    count: number[];
    least_ns: number[];
    mean_ns: number[];
    most_ns: number[];
    slowest: string[];
    opens: number[];
  };
  device: {
    operation: number[];
    resource: number[];
    name: number[];
    event: number[];
    start_ns: number[];
    end_ns: number[];
    busy_ns: number[];
    count: number[];
  };
  strings: string[];
}

export interface Hits {
  path: string;
  hits: number[];
}

export interface FoundEvent {
  event: number;
  name: string;
  category: string;
  /** null outside all steps. */
  step: number | null;
  rank: number;
  duration_ns: number;
}

export interface SearchAnswer {
  text: string;
  total: number;
  levels: Hits[];
  first: FoundEvent[];
}

export interface ModuleNode {
  name: string;
  class: string;
  path: string;
  count: number;
  modules: number[];
  calls: number;
  forward_cpu_ms: number;
  forward_device_ms: number;
  backward_cpu_ms: number;
  backward_device_ms: number;
  recompute_cpu_ms: number;
  recompute_device_ms: number;
  parameters: number | null;
  file: string;
  line: number | null;
  call_file: string;
  call_line: number | null;
  spread_ms: [number, number];
  children: ModuleNode[];
  copies?: ModuleNode[];
}

export interface Modules {
  rank: number;
  steps: number[];
  evidence: string;
  tree: ModuleNode[];
}

export interface KernelRow {
  name: string;
  short: string;
  kind: string;
  count: number;
  total_ms: number;
  share: number;
  mean_ns: number;
  least_ns: number;
  most_ns: number;
  std_ns: number;
  longest_event: number;
  stages: Record<string, number>;
  blocks_per_sm: number | null;
  occupancy: number | null;
  tflops: number | null;
  gbytes: number | null;
  of_peak: number | null;
  limit: "compute" | "memory" | "" | null;
}

export interface Kernels {
  are: string;
  rank: number;
  steps: number[];
  rows: KernelRow[];
}

export interface EventLink {
  event: number;
  name: string;
}

export interface Line {
  file: string;
  line: number;
}

export interface Selects {
  modules: number[];
  kernels: string[];
  lines: Line[];
}

export interface Details {
  path: string;
  level: string;
  name: string;
  full_name: string;
  kind: string;
  event: number | null;
  category: string | null;
  step: number;
  rank: number;
  stage: string | null;
  track: {
    id: number;
    kind: string;
    name: string;
    device: number | null;
    stream: number | null;
  } | null;
  module: { id: number; path: string; class: string } | null;
  start_ns: number;
  cpu_ns: number;
  self_ns: number;
  device_ns: number;
  device_start_ns: number | null;
  device_end_ns: number | null;
  recompute_ns: number;
  bound_by: string;
  events: number;
  arguments: Record<string, unknown>;
  instances: {
    of: string;
    side: string;
    count: number;
    total_ns: number;
    mean_ns: number;
    median_ns: number;
    std_ns: number;
    least_ns: number;
    most_ns: number;
    shapes: { shapes: string; count: number; mean_ns: number }[];
    rows: { event: number; step: number; start_ns: number; duration_ns: number }[];
  } | null;
  launch: (EventLink & { delay_ns: number }) | null;
  device_work: {
    count: number;
    rows: (EventLink & {
      full_name: string;
      stream: number | null;
      start_ns: number;
      duration_ns: number;
      launch: number | null;
      delay_ns: number | null;
    })[];
  } | null;
  kernel: {
    grid: number[] | null;
    block: number[] | null;
    registers: number | null;
    shared_bytes: number | null;
    occupancy: number | null;
    blocks_per_sm: number | null;
    warps_per_sm: number | null;
  } | null;
  forward: EventLink | null;
  backward: EventLink | null;
  source: (Line & { what: string; name: string })[];
  selects: Selects;
}

export interface FindingPlace {
  name: string;
  short: string;
  stage: string;
  module: string;
  file: string;
  line: number | null;
  function: string;
  count: number;
  ms: number;
  event: number | null;
}

export interface Finding {
  id: number;
  rule: string;
  severity: "info" | "warning" | "critical";
  what: string;
  advice: string;
  gain_ms: number;
  share: number;
  gain_by: string;
  range_ms: [number, number] | null;
  changes: string[];
  evidence: FindingPlace[];
  places: number;
}

export interface Findings {
  rank: number;
  step_ms: number;
  /** Whether the first step is left out, as it warms up. */
  leaves_out_a_step: boolean;
  rules: number;
  findings: Finding[];
}

export interface Place {
  event: number;
  path: string;
  level: string;
}

export interface Selected extends Selects {
  title: string;
  total: number;
  target: Place | null;
  levels?: Hits[];
}

/** What figures are of: means a step, or all of the recording. */
export type Per = "step" | "recording";

export interface Sources {
  files: SourceFile[];
  per: Per;
}

export interface SourceFile {
  file: string;
  readable: boolean;
  reason: string;
  cpu_ms: number;
  device_ms: number;
  lines: number;
}

export interface SourceLine {
  line: number;
  forward_cpu_ms: number;
  forward_device_ms: number;
  backward_cpu_ms: number;
  backward_device_ms: number;
  other_cpu_ms: number;
  other_device_ms: number;
  share: number;
  calls: number;
  modules: number[];
  what: string;
  name: string;
}

export interface Source {
  file: string;
  readable: boolean;
  reason: string;
  text: string | null;
  changed: boolean;
  per: Per;
  lines: SourceLine[];
}

export interface Names {
  path: string;
  strings: string[];
  short: string[];
  paths: string[];
  event: number[];
  name: number[];
  place: number[];
  duration_ns: number[];
}
