import { computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { Client, type Scope, type Subject } from "../api/client";
import type { Host } from "../api/host";
import type * as wire from "../api/types";
import { messageOf } from "../base/error";
import { holds, parent, stepOf } from "../base/path";
import { Level } from "../model/level";
import { awaiting } from "./awaited";
import { latest, type Loaded } from "./latest";
import { fromHash, NO_VIEW, type View } from "./url";

/** What the panes mark besides the timeline. */
export interface Marks {
  modules: ReadonlySet<number>;
  kernels: ReadonlySet<string>;
  lines: ReadonlyMap<string, ReadonlySet<number>>;
}

/** Hits by the level's path: for each operation how many raw events are found inside. */
export type HitsByLevel = ReadonlyMap<string, readonly number[]>;

/** The other end of an arrow. */
export interface Partner {
  kind: "launch" | "forward" | "backward";
  path: string;
}

/** Everything on screen, as signals: one view that is written, and what follows from it. */
export class Store {
  readonly view: Signal<View>;
  readonly traces: Signal<wire.Traces | null> = signal(null);
  readonly failure: Signal<string> = signal("");
  /** A line for the user that passes: a link that could not be followed, Perfetto not answering. */
  readonly notice: Signal<string> = signal("");
  readonly helpShown: Signal<boolean> = signal(false);
  readonly paletteShown: Signal<boolean> = signal(false);

  readonly entry: ReadonlySignal<wire.TraceEntry | null>;
  readonly client: ReadonlySignal<Client | null>;
  readonly overview: ReadonlySignal<Loaded<wire.Overview>>;
  /** The same of the trace on screen alone: nothing while it is on its way. */
  private readonly known: ReadonlySignal<wire.Overview | null>;
  /** Whether no step was recorded, so that there is no timeline: contexts alone. */
  readonly stepless: ReadonlySignal<boolean>;
  readonly facts: ReadonlySignal<Loaded<wire.Overview>>;
  readonly levels: ReadonlySignal<Loaded<Level[]>>;
  readonly details: ReadonlySignal<Loaded<wire.Details>>;
  /** What is searched, once nobody types on. */
  readonly searched: ReadonlySignal<Loaded<string>>;
  readonly found: ReadonlySignal<Loaded<wire.SearchAnswer>>;
  readonly selected: ReadonlySignal<Loaded<wire.Selected>>;
  readonly scope: ReadonlySignal<Scope | null>;
  readonly marks: ReadonlySignal<Marks>;
  readonly hits: ReadonlySignal<HitsByLevel | null>;
  /** The level that lists the chosen operation, and its number there. */
  readonly place: ReadonlySignal<ChosenPlace | null>;
  /** Where the other ends of the chosen operation's arrows are. */
  readonly partners: ReadonlySignal<Loaded<Partner[]>>;
  /** Rises whenever the view says what of the time axis is visible. */
  readonly placed: Signal<number> = signal(0);
  /** How often somebody went elsewhere: what was asked for before that leads nowhere any more. */
  private moves = 0;

  constructor(
    readonly host: Host,
    hash: string,
  ) {
    const view = (this.view = signal(fromHash(hash)));
    // Each part by itself: what follows from one is not worked out again when another changes.
    const part = <K extends keyof View>(key: K) => computed(() => view.value[key]);
    const [path, chosen, every] = [part("path"), part("chosen"), part("every")];
    const aligned = part("aligned");
    const [text, subject] = [part("text"), part("subject")];
    this.entry = computed(() => entryOf(this.traces.value, view.value.trace));
    const id = computed(() => (this.entry.value?.state === "ready" ? this.entry.value.id : ""));
    this.client = computed(() => (id.value ? new Client(host, id.value) : null));
    this.overview = latest(() => this.client.value?.overview() ?? null);
    // Until another trace has told of itself, ranks and steps are those of the one before.
    this.known = computed(() => (this.overview.value.loading ? null : this.overview.value.value));
    this.stepless = computed(() => this.known.value?.facts === null);
    const rank = computed(() => stepOf(path.value ?? "")?.rank ?? this.overview.value.value?.rank);
    const step = computed(() => (view.value.oneStep ? stepOf(path.value ?? "")?.step : undefined));
    this.scope = computed(() =>
      rank.value === undefined || !this.known.value?.facts
        ? null
        : { rank: rank.value, step: step.value },
    );
    this.facts = this.scoped((client, scope) => client.overview(scope));
    this.levels = latest(() => {
      const draw = aligned.value ? drawnAligned : drawn;
      const client = this.client.value;
      if (!client || path.value === null) return null;
      const known = client.knownLevels(path.value, every.value);
      if (known) return known.map(draw);
      return client.levels(path.value, every.value).then((all) => all.map(draw));
    });
    this.details = latest(() => {
      const [client, one] = [this.client.value, chosen.value];
      if (!client || !one) return null;
      // After the level on its way, which is what somebody waits for.
      const level = path.value === null ? null : client.levels(path.value, every.value);
      return rested(REST_MS, () => chosen.peek() === one, level).then(() => client.details(one));
    });
    this.searched = latest(() => {
      const now = text.value;
      return now ? rested(TYPING_MS, () => text.peek() === now).then(() => now) : null;
    });
    this.found = latest(() => {
      const wanted = this.searched.value.value;
      return wanted && path.value !== null
        ? (this.client.value?.search(wanted, path.value, every.value) ?? null)
        : null;
    });
    this.selected = latest(() =>
      subject.value && path.value !== null
        ? (this.client.value?.select(subject.value, path.value, every.value) ?? null)
        : null,
    );
    this.marks = computed(() =>
      subject.value && this.selected.value.value
        ? marksOfPart(subject.value, this.selected.value.value)
        : marksOfOperation(this.details.value.value),
    );
    this.hits = computed(() => {
      const levels = text.value
        ? this.found.value.value?.levels
        : this.selected.value.value?.levels;
      return levels ? new Map(levels.map((one) => [one.path, one.hits])) : null;
    });
    this.place = computed(() => placeOf(this.levels.value.value ?? [], chosen.value));
    this.partners = latest(() => {
      const [client, place] = [this.client.value, this.place.value];
      if (!client || !place) return null;
      return rested(REST_MS, () => this.place.peek() === place).then(() =>
        partnersOf(client, place),
      );
    });
  }

  /** Follows a question about the trace: asked again when another trace is opened that has an answer. */
  follow<T>(
    ask: (client: Client) => Promise<T> | null,
    has?: (known: wire.Overview) => boolean,
  ): ReadonlySignal<Loaded<T>> {
    return latest(() => {
      const client = this.client.value;
      if (has && !(this.known.value && has(this.known.value))) return null;
      return client ? ask(client) : null;
    });
  }

  /** Follows a question about a rank and a step, or the means over its steps. */
  scoped<T>(ask: (client: Client, scope: Scope) => Promise<T>): ReadonlySignal<Loaded<T>> {
    return latest(() => {
      const [client, scope] = [this.client.value, this.scope.value];
      return client && scope ? ask(client, scope) : null;
    });
  }

  /** The same, or about all that there is where no step was recorded. */
  inScope<T>(
    ask: (client: Client, scope: Scope | null) => Promise<T> | null,
  ): ReadonlySignal<Loaded<T>> {
    return latest(() => {
      const [client, scope] = [this.client.value, this.scope.value];
      return client && (scope || this.stepless.value) ? ask(client, scope) : null;
    });
  }

  set(change: Partial<View>): void {
    if ("path" in change || "chosen" in change || "subject" in change) this.moves++;
    this.view.value = { ...this.view.value, ...change };
    if ("window" in change) this.placed.value = this.placed.peek() + 1;
  }

  /** Shows the inside of an operation as the lowest level, and chooses it or one of those inside. */
  open(path: string, chosen = path): void {
    this.set(spot(path, chosen));
  }

  /** Chooses an operation and leaves the levels as they are. */
  choose(path: string): void {
    this.set({ chosen: path, subject: null, file: "", area: null });
  }

  /** Asks for the inside of an operation that may be opened next. */
  askAhead(path: string): void {
    const client = this.client.value;
    if (client) awaiting(client.levels(path, this.view.value.every)).catch(() => undefined);
  }

  /** Closes the lowest level. */
  up(): void {
    const { path } = this.view.value;
    if (path) this.open(parent(path));
  }

  /** Goes to where an answer leads, unless somebody went elsewhere meanwhile. */
  async goWhere(ask: (client: Client) => Promise<Partial<View>>): Promise<void> {
    const [client, move] = [this.client.value, ++this.moves];
    if (!client) return;
    try {
      const change = await awaiting(ask(client));
      if (move === this.moves) this.set(change);
    } catch (error) {
      if (move === this.moves) this.notice.value = messageOf(error);
    }
  }

  /** Follows a choice made in a pane: the timeline goes to its longest operation. */
  choosePart(subject: Subject): Promise<void> {
    this.set({ subject, file: "file" in subject ? subject.file : "" });
    const { path, every } = this.view.value;
    return this.goWhere(async (client) => {
      const { target, title } = await client.select(subject, path ?? "", every);
      if (!target) throw new Error(`${title} has no event in any step.`);
      return { path: target.level, chosen: target.path, window: null, area: null };
    });
  }

  /** Goes to the operation that holds a raw event. */
  goTo(event: number): Promise<void> {
    return this.goWhere(async (client) => {
      const place = await client.placeOf(event);
      if (!place.path) throw new Error(`Event ${event} is outside all steps.`);
      return spot(place.level, place.path);
    });
  }

  /** Goes down the longest operations on the CPU, from the lowest level on. */
  async descend(): Promise<void> {
    const { path, every } = this.view.value;
    if (path !== null) await this.goWhere((client) => slowest(client, path, every));
  }

  /** Goes to the longest kernel of the step on screen; to the longest copy if it has no kernel. */
  async longestKernel(): Promise<void> {
    const at = stepOf(this.view.value.path || this.overview.value.value?.start || "");
    if (!at) return;
    await this.goWhere(async (client) => {
      const { rows, are } = await client.kernels(at);
      const kernels = rows.filter((row) => !COPIES.has(row.kind));
      const longest = (kernels.length ? kernels : rows).reduce<wire.KernelRow | null>(
        (most, row) => (most && most.most_ns >= row.most_ns ? most : row),
        null,
      );
      if (!longest || are !== "kernels") throw new Error("This step has no device work.");
      const place = await client.placeOf(longest.longest_event);
      return spot(place.level, place.path);
    });
  }

  /** The step on screen of another rank. */
  showRank(rank: number): void {
    const { steps = [], start = "" } = this.overview.value.value ?? {};
    const now = stepOf(this.view.value.path || start);
    const mine = steps.filter((one) => one.rank === rank);
    const same = mine.find((one) => one.step === now?.step) ?? mine[0];
    if (same) this.open(same.id);
  }

  /** Another trace, from its start. */
  openTrace(trace: string): void {
    const { pane, notes } = this.view.value;
    this.set({ ...NO_VIEW, trace, pane, notes });
  }
}

/** Kinds of device work that are not kernels. */
const COPIES: ReadonlySet<string> = new Set(["memcpy", "memset"]);

/** An operation of a level as where somebody is. */
export function spot(path: string, chosen = path): Partial<View> {
  return { path, chosen, subject: null, file: "", window: null, area: null };
}

/**
 * Opens the longest operation again and again: down to a single one, or to one that takes longer
 * itself than anything inside it.
 */
async function slowest(client: Client, path: string, every: boolean) {
  let own = 0;
  while (true) {
    const level = drawn((await client.levels(path, every)).at(-1)!);
    const longest = level.longest("cpu");
    if (longest < 0) return spot(path);
    const one = level.operation(longest);
    if (own > one.cpu) return spot(parent(path), path);
    if (!one.opens) return spot(path, one.path);
    own = one.self;
    path = one.path;
  }
}

/** Somebody who goes on within this time is not told about where they were. */
const REST_MS = 80;
/** While somebody types, the search waits this long for the next letter. */
const TYPING_MS = 120;

/** Once what comes first is there, and a choice has lasted; never, if it does not. */
async function rested(ms: number, lasts: () => boolean, first: Promise<unknown> | null = null) {
  const pause = new Promise((resolve) => setTimeout(resolve, ms));
  await Promise.allSettled([pause, first]);
  if (!lasts()) await new Promise<never>(() => {});
}

/** The level that lists an operation, its number there, and how deep the level is. */
export interface ChosenPlace {
  level: Level;
  index: number;
  depth: number;
}

function placeOf(levels: Level[], path: string): ChosenPlace | null {
  const depth = levels.findIndex((one) => path !== "" && one.path === parent(path));
  const level = levels[depth];
  const index = level ? level.find(path) : -1;
  return level && index >= 0 ? { level, index, depth } : null;
}

/** The events that an operation's arrows lead to, with their places. */
function partnersOf(client: Client, { level, index }: ChosenPlace): Promise<Partner[]> {
  const columns = level.wire.operations;
  const kinds = (["launch", "forward", "backward"] as const).filter(
    (one) => columns[one][index]! >= 0,
  );
  return Promise.all(
    kinds.map(async (kind) => ({ kind, path: (await client.placeOf(columns[kind][index]!)).path })),
  );
}

/** The level of an answer, made once; as recorded, or with its device work below its launches. */
const [drawn, drawnAligned] = [false, true].map((aligned) => {
  const made = new WeakMap<wire.WireLevel, Level>();
  return (level: wire.WireLevel): Level => {
    const kept = made.get(level) ?? new Level(level, aligned);
    made.set(level, kept);
    return kept;
  };
}) as [(level: wire.WireLevel) => Level, (level: wire.WireLevel) => Level];

function entryOf(traces: wire.Traces | null, id: string): wire.TraceEntry | null {
  const all = traces?.traces ?? [];
  return all.find((one) => one.id === id) ?? (id ? null : (all[0] ?? null));
}

/** What belongs to a part that was chosen in a pane; of a module the module itself. */
function marksOfPart(subject: Subject, selected: wire.Selected): Marks {
  return marksOf(selected, "module" in subject ? [subject.module] : selected.modules);
}

/** What belongs to an operation: its module, where it is in one. A step holds all there is. */
function marksOfOperation(details: wire.Details | null): Marks {
  if (!details || details.kind === "step") return marksOf(null, []);
  return marksOf(details.selects, details.module ? [details.module.id] : details.selects.modules);
}

function marksOf(selects: wire.Selects | null, modules: number[]): Marks {
  const lines = new Map<string, Set<number>>();
  for (const one of selects?.lines ?? []) {
    lines.set(one.file, (lines.get(one.file) ?? new Set()).add(one.line));
  }
  return { modules: new Set(modules), kernels: new Set(selects?.kernels), lines };
}

/** Whether an operation leads to what is open: it is the path or above it. */
export function isOpened(operation: string, path: string | null): boolean {
  return path !== null && operation !== "" && holds(operation, path);
}
