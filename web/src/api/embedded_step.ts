import type {
  DetailColumns,
  Details,
  DeviceColumns,
  OperationColumns,
  StepAnswer,
  WireLevel,
} from "./types";

/** The levels of a step in a single file, which holds their columns one after the other. */
export class EmbeddedStep {
  /** The path of each place: the step, and each operation. */
  readonly paths: string[];
  private readonly placeOf: Map<string, number>;
  private readonly levels = new Map<string, () => WireLevel>();

  constructor(
    readonly answer: StepAnswer,
    private readonly known: DetailColumns | undefined,
  ) {
    this.paths = [answer.path];
    let first: Rows = { operations: 0, device: 0, resources: 0 };
    for (let row = 0; row < answer.levels.opened.length; row++) {
      const end = endOf(answer, row, first);
      const [path, lists] = [this.paths[answer.levels.opened[row]!]!, answer.levels.lists[row]!];
      const level = levelOf.bind(null, answer, path, row, first, end);
      if (lists !== EVERY) this.levels.set(path, level);
      if (lists !== SHOWN) {
        this.levels.set(`*${path}`, level);
        const ids = answer.operations.id.slice(first.operations, end.operations);
        for (const id of ids) this.paths.push(`${path}/${id}`);
      }
      first = end;
    }
    this.placeOf = new Map(this.paths.map((path, place) => [path, place]));
  }

  level(path: string, every: boolean): WireLevel | undefined {
    return this.levels.get(every ? `*${path}` : path)?.();
  }

  details(path: string): Details | undefined {
    const place = this.placeOf.get(path);
    if (place === undefined || !this.known) return undefined;
    const columns = Object.entries(this.known.columns);
    if (place >= columns[0]![1].value.length) return undefined;
    const fields = columns.map(([name, column]) => [name, column.values[column.value[place]!]]);
    const level = path.slice(0, Math.max(path.lastIndexOf("/"), 0));
    return { path, level, ...Object.fromEntries(fields) } as Details;
  }

  /** The path of the smallest operation that holds an event. */
  pathOf(event: number): string | undefined {
    const row = this.answer.events.event.indexOf(event);
    return row < 0 ? undefined : this.paths[this.answer.events.place[row]!];
  }
}

const [SHOWN, EVERY] = [1, 2]; // `LevelRows.lists`

interface Rows {
  operations: number;
  device: number;
  resources: number;
}

/** Where the rows of a level end, which begin at `first`. */
function endOf(answer: StepAnswer, row: number, first: Rows): Rows {
  return {
    operations: first.operations + answer.levels.operations[row]!,
    device: first.device + answer.levels.device[row]!,
    resources: first.resources + answer.levels.resources[row]!,
  };
}

function levelOf(answer: StepAnswer, path: string, row: number, first: Rows, end: Rows): WireLevel {
  const { levels, resources, strings } = answer;
  const tracks = resources.track.slice(first.resources, end.resources);
  return {
    path,
    name: strings[levels.name[row]!]!,
    through: levels.through[row]!.map((text) => strings[text]!),
    start_ns: levels.start_ns[row]!,
    length_ns: levels.length_ns[row]!,
    shift_ns: levels.shift_ns[row]!,
    passed: levels.passed[row]!,
    hidden: levels.hidden[row]!,
    resources: tracks.map((track, i) => ({
      ...answer.tracks[track]!,
      busy_ns: resources.busy_ns[first.resources + i]!,
      shown: resources.shown[first.resources + i] === 1,
    })),
    operations: cut<OperationColumns>(answer.operations, first.operations, end.operations),
    device: cut<DeviceColumns>(answer.device, first.device, end.device),
    strings,
  };
}

/** Rows of columns of one length. */
function cut<Columns extends object>(columns: Columns, first: number, end: number): Columns {
  const parts = Object.entries(columns).map(([name, column]) => [
    name,
    (column as unknown[]).slice(first, end),
  ]);
  return Object.fromEntries(parts) as Columns;
}
