import { batch, computed, effect, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import type { WatchHost } from "../api/watch";
import type { UnusualSteps, WatchAnswer } from "../api/watch_types";
import { messageOf } from "../base/error";
import { rounded, shifted, within, zoomed, type Span } from "../model/span";
import { nextPlace, WatchedSteps } from "../model/watched";
import { awaiting, count } from "./awaited";

/** All that a URL says of what is on screen. */
export interface WatchView {
  /** The visible part, ns since the start of the program; null for all of the run. */
  window: Span | null;
  /** The field whose steps are marked; empty for none. */
  mark: string;
  /** `keyOf` the slow steps that are explained; empty for none. */
  slow: string;
  /** The number of the chosen step. */
  step: number | null;
}

/** So often a run that goes on is asked for more, ms. */
const POLL_MS = 1000;
/** Once nobody moves the axis for so long, the URL says where it is. */
const REST_MS = 200;
const NS_PER_MS = 1e6;

/** What the page about a watched run shows. */
export class WatchStore {
  readonly answer: Signal<WatchAnswer>;
  readonly view: Signal<WatchView>;
  /** Rises when steps were appended. */
  readonly version = signal(0);
  /** Why the server tells no more; empty while it does. */
  readonly error = signal("");
  readonly window: ReadonlySignal<Span>;
  readonly slow: ReadonlySignal<UnusualSteps | null>;
  steps = new WatchedSteps();
  private timer = 0;

  constructor(
    private readonly host: WatchHost,
    first: WatchAnswer,
  ) {
    this.answer = signal(first);
    this.steps.append(first.columns);
    const view = (this.view = signal(fromHash(location.hash)));
    this.window = computed(() => view.value.window ?? { from: 0, to: this.end });
    this.slow = computed(
      () => this.answer.value.slow.find((one) => keyOf(one) === view.value.slow) ?? null,
    );
    effect(() => this.remember(toHash(view.value)));
    addEventListener("hashchange", () => (view.value = fromHash(location.hash)));
    this.follow();
  }

  /** Where the axis ends, ns. */
  get end(): number {
    const run_ns = 1e9 * this.answer.value.run_s;
    return Math.max(run_ns, this.steps.length ? this.steps.endOf(this.steps.length - 1) : 1);
  }

  /** Whether the run may still tell more. */
  get follows(): boolean {
    return this.host.live && !this.answer.value.facts.outcome;
  }

  set(change: Partial<WatchView>): void {
    this.view.value = { ...this.view.value, ...change };
  }

  show(span: Span): void {
    const least = Math.min(this.answer.value.usual_ms * NS_PER_MS || 1, this.end);
    const middle = (span.from + span.to) / 2;
    const size = Math.max(span.to - span.from, least);
    const whole = size >= this.end;
    const shown = within({ from: middle - size / 2, to: middle + size / 2 }, this.end);
    this.set({ window: whole ? null : rounded(shown) });
  }

  zoom(factor: number, at: number | null): void {
    const { from, to } = this.window.value;
    const inside = at !== null && at >= from && at <= to;
    this.show(zoomed({ from, to }, inside ? at : (from + to) / 2, factor, this.end));
  }

  /** Moves by a part of what is visible. */
  pan(share: number): void {
    const { from, to } = this.window.value;
    this.show(shifted({ from, to }, share * (to - from), this.end));
  }

  /** Chooses a step, and slow steps that it is one of; the axis follows where it is out of sight. */
  choose(place: number): void {
    if (place < 0 || place >= this.steps.length) return;
    const step = this.steps.number[place]!;
    const slow = this.answer.value.slow.find((one) => isOf(one, step));
    this.set({ step, slow: slow ? keyOf(slow) : "" });
    const { from, to } = this.window.value;
    const [begin, end] = [this.steps.begin[place]!, this.steps.endOf(place)];
    if (begin < from || end > to)
      this.show(shifted({ from, to }, (begin + end - from - to) / 2, this.end));
  }

  walk(by: 1 | -1): void {
    const { step } = this.view.value;
    const { from, to } = this.window.value;
    const at = step === null ? this.steps.placeAt((from + to) / 2) - by : this.steps.placeOf(step);
    this.choose(at + by);
  }

  /** Explains slow steps, with all of them in sight. */
  explain(slow: UnusualSteps): void {
    const [first, last] = [this.steps.placeOf(slow.first), this.steps.placeOf(slow.last)];
    const [from, to] = [this.steps.begin[first]!, this.steps.endOf(last)];
    batch(() => {
      this.set({ slow: keyOf(slow), step: null });
      this.show({ from: from - (to - from) * RIM, to: to + (to - from) * RIM });
    });
  }

  /** The next or the previous slow steps in order of time. */
  walkSlow(by: 1 | -1): void {
    const all = [...this.answer.value.slow].sort((a, b) => a.first - b.first);
    if (!all.length) return;
    const now = all.findIndex((one) => keyOf(one) === this.view.value.slow);
    const next = now < 0 ? (by > 0 ? 0 : all.length - 1) : (now + by + all.length) % all.length;
    this.explain(all[next]!);
  }

  /** Chooses the next or the previous step that is marked. */
  walkMarked(by: 1 | -1): void {
    const { step, mark } = this.view.value;
    const from = step === null ? (by > 0 ? -1 : this.steps.length) : this.steps.placeOf(step);
    this.choose(
      nextPlace(this.steps.length, from, by, (place) => this.steps.isMarked(mark, place)),
    );
  }

  async openRank(rank: number): Promise<void> {
    await awaiting(this.take(() => this.host.ask(rank, null), true));
  }

  private follow(): void {
    clearTimeout(this.timer);
    if (!this.follows) return;
    this.timer = window.setTimeout(async () => {
      const { rank } = this.answer.value.facts;
      await this.take(() => this.host.ask(rank, this.steps.last), false);
      this.follow();
    }, POLL_MS);
  }

  /** Takes an answer: appended, or instead of what there was. */
  private async take(ask: () => Promise<WatchAnswer>, afresh: boolean): Promise<void> {
    const before = this.answer.value;
    try {
      let answer = await ask();
      if (before !== this.answer.value) return; // another rank was opened meanwhile
      const other = answer.id !== before.id;
      if (other && !afresh) answer = await this.host.ask(answer.facts.rank, null);
      batch(() => {
        if (other || afresh) {
          this.steps = new WatchedSteps();
          this.set({ window: null, slow: "", step: null });
        }
        this.steps.append(answer.columns);
        this.answer.value = answer;
        this.version.value++;
        this.error.value = "";
      });
      if (afresh) this.follow();
    } catch (error) {
      this.error.value = messageOf(error);
    }
  }

  /** Writes the URL once the view rests: browsers limit how often. */
  private remember(hash: string): void {
    if (this.resting) clearTimeout(this.resting);
    else count(1);
    this.resting = window.setTimeout(() => {
      this.resting = 0;
      if (hash !== location.hash) history.replaceState(null, "", hash || " ");
      count(-1);
    }, REST_MS);
  }

  private resting = 0;
}

/** Around slow steps that are shown, of their time. */
const RIM = 0.75;

/** The same for the same slow steps while the run goes on and their number grows. */
export function keyOf(slow: UnusualSteps): string {
  return `${slow.first}:${slow.cause}`;
}

/** Whether a step is one of these slow ones. */
export function isOf(slow: UnusualSteps, step: number): boolean {
  if (slow.numbers.length) return slow.numbers.includes(step);
  return step >= slow.first && step <= slow.last;
}

function fromHash(hash: string): WatchView {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const found = /^(\d{1,18})-(\d{1,18})$/.exec(said.get("window") ?? "");
  const span = found && { from: Number(found[1]), to: Number(found[2]) };
  const step = said.get("step") ?? "";
  return {
    window: span && span.to > span.from ? span : null,
    mark: said.get("mark") ?? "",
    slow: said.get("slow") ?? "",
    step: /^\d{1,15}$/.test(step) ? Number(step) : null,
  };
}

function toHash({ window, mark, slow, step }: WatchView): string {
  const said = new URLSearchParams();
  if (window) said.set("window", `${Math.round(window.from)}-${Math.round(window.to)}`);
  if (mark) said.set("mark", mark);
  if (slow) said.set("slow", slow);
  if (step !== null) said.set("step", String(step));
  const text = said.toString();
  return text && `#${text}`;
}
