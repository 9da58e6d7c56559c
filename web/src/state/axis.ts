import { computed, effect, signal, type ReadonlySignal } from "@preact/signals";
import type * as wire from "../api/types";
import { counterTileOf, type CounterTile } from "../model/counters";
import type { Level } from "../model/level";
import { rounded, within, type Span } from "../model/span";
import { tileOf, type Piece, type Tile } from "../model/tiles";
import { count } from "./awaited";
import type { Loaded } from "./latest";
import { perStore } from "./per_store";
import type { Store } from "./store";
import { Tiles } from "./tiles";

/** Once nobody moves the axis for so long, the URL says where it is. */
const REST_MS = 200;

/** The time axis of a trace: what is visible, and the tiles that show it. */
export class AxisState {
  readonly about: ReadonlySignal<Loaded<wire.Axis>>;
  /** The visible part, ns since the trace's start. */
  readonly window: ReadonlySignal<Span>;
  /** Rises when tiles arrived, once a frame. */
  readonly arrived = signal(0);
  /** The part that somebody drags over. */
  readonly marked = signal<Span | null>(null);
  /** Tracks that somebody opened or closed, by id. */
  readonly folded = signal<ReadonlyMap<string, boolean>>(new Map());
  /** What is drawn of each track. */
  readonly drawn = new Map<string, readonly Piece[]>();
  readonly pinned = signal<readonly string[]>([]);
  /** Where a step ends that lies below the one on screen, which may be after all of the trace. */
  readonly below = signal(0);
  private readonly moving = signal<Span | null>(null);
  private slices!: Tiles<Tile>;
  private counters!: Tiles<CounterTile>;
  private timer = 0;
  private frame = 0;
  private last: Span = { from: 0, to: 1 };

  constructor(private readonly store: Store) {
    this.about = store.follow((client) => client.ask<wire.Axis>("axis"));
    this.window = computed(() => (this.last = this.visible()));
    effect(() => {
      const client = store.client.value;
      if (!client) return;
      this.slices = new Tiles(
        async (track, axis, { zoom, tile }) =>
          tileOf(axis, await client.tiles.slices(track, zoom, tile)),
        this.redraw,
      );
      this.counters = new Tiles(
        async (counter, axis, { zoom, tile }) =>
          counterTileOf(axis, await client.tiles.counter(counter, zoom, tile)),
        this.redraw,
      );
      this.folded.value = new Map();
      this.pinned.value = [];
    });
    const path = computed(() => store.view.value.path);
    effect(() => {
      void [path.value, store.placed.value];
      this.rest();
    });
  }

  get end(): number {
    return Math.max(this.about.value.value?.end_ns ?? this.last.to, this.below.value);
  }

  private visible(): Span {
    const moving = this.moving.value ?? this.store.view.value.window;
    if (moving) return moving;
    const { value, error } = this.store.levels.value;
    if (error && !value) return { from: 0, to: this.end }; // the link leads nowhere in this trace
    const level = value?.at(-1);
    if (level?.path !== this.store.view.value.path) return this.last;
    const { from, to } = extentOf(level!);
    return { from, to: value!.length === 2 ? Math.max(to, this.below.value) : to };
  }

  /** Shows a part of the axis; the URL follows once it stays. */
  show(span: Span): void {
    if (!this.moving.peek()) count(1);
    this.moving.value = within(span, this.end);
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      this.store.set({ window: rounded(this.moving.peek()!) });
    }, REST_MS);
  }

  /** Shows all of the lowest level. */
  showAll(): void {
    this.store.set({ window: null });
  }

  /** The view says what is visible: no move is on its way any more. */
  private rest(): void {
    clearTimeout(this.timer);
    if (this.moving.peek()) count(-1);
    this.moving.value = null;
  }

  /** The axis of the trace that is open; until it has come, that of the one before is still shown. */
  private own(): wire.Axis | null {
    const { value, loading } = this.about.value;
    return loading ? null : value;
  }

  /** The tiles that show a window of a track. */
  shown(track: string, window: Span, pixels: number): Piece[] {
    const axis = this.own();
    return axis ? this.slices.shown(track, axis, window, pixels, this.drawn.size + 1) : [];
  }

  /** The tiles that show a window of a counter. */
  counterPieces(counter: string, window: Span, pixels: number): Piece<CounterTile>[] {
    const axis = this.own();
    return axis ? this.counters.shown(counter, axis, window, pixels, axis.counters.length) : [];
  }

  /** Says once a frame that tiles arrived. */
  private readonly redraw = (): void => {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.arrived.value++;
    });
  };

  /** Opens or closes a track. */
  fold(track: string, folded: boolean): void {
    this.folded.value = new Map(this.folded.value).set(track, folded);
  }

  /** Moves a track above the others, or back. */
  pin(track: string): void {
    const pinned = this.pinned.value;
    this.pinned.value = pinned.includes(track)
      ? pinned.filter((one) => one !== track)
      : [...pinned, track];
  }
}

/** From the start of a level to the end of its work on either side. */
export function extentOf(level: Level): Span {
  return { from: level.start, to: level.start + level.reach };
}

export const axisOf = perStore((store) => new AxisState(store));
