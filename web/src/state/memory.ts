import { computed, signal, type ReadonlySignal } from "@preact/signals";
import type * as wire from "../api/types";
import { requestKey } from "../api/request";
import { memoryTileOf, type MemoryTile } from "../model/memory";
import { within, type Span } from "../model/span";
import type { Piece } from "../model/tiles";
import { axisOf } from "./axis";
import { latest, type Loaded } from "./latest";
import { perStore } from "./per_store";
import type { Store } from "./store";
import { Tiles } from "./tiles";
import type { MemoryView } from "./url";

/** The memory of a trace: which device and areas are on screen, the tiles, and what lives when. */
export class MemoryState {
  readonly about: ReadonlySignal<Loaded<wire.Memory>>;
  readonly device: ReadonlySignal<wire.MemoryDevice | null>;
  readonly grouping: ReadonlySignal<wire.MemoryGroups | null>;
  /** The area that stands out: the chosen one, or that of the module chosen elsewhere. */
  readonly group: ReadonlySignal<number | null>;
  /** The visible part: of a trace with a timeline what that shows. */
  readonly window: ReadonlySignal<Span>;
  readonly moment: ReadonlySignal<Loaded<wire.MemoryMoment>>;
  /** Rises when tiles arrived, once a frame. */
  readonly arrived = signal(0);
  /** The row of what lives whose stack is shown; without one that of the largest allocation. */
  readonly row = signal<string | null>(null);
  private readonly zoomed = signal<Span | null>(null);
  private readonly tiles: ReadonlySignal<Tiles<MemoryTile, wire.Memory> | null>;
  private frame = 0;

  constructor(private readonly store: Store) {
    const view = computed(() => store.view.value.memory);
    this.about = store.follow(
      (client) => client.ask<wire.Memory>("memory"),
      ({ has }) => has.memory,
    );
    this.device = computed(() => {
      const devices = this.about.value.value?.devices ?? [];
      return devices.find((one) => one.id === view.value.device) ?? devices[0] ?? null;
    });
    this.grouping = computed(() => {
      const all = this.device.value?.groupings ?? [];
      return all.find((one) => one.by === view.value.by) ?? all[0] ?? null;
    });
    this.group = computed(() => {
      const grouping = this.grouping.value;
      if (!grouping) return null;
      const { group } = view.value;
      if (group !== null) return group < grouping.names.length ? group : null;
      const marked = store.marks.value.modules;
      const found = grouping.modules.findIndex((id) => id >= 0 && marked.has(id));
      return found < 0 ? null : found;
    });
    this.window = computed(() => {
      if (!store.stepless.value) return axisOf(store).window.value;
      return this.zoomed.value ?? { from: 0, to: this.end };
    });
    this.tiles = computed(() => {
      const client = store.client.value;
      if (!client) return null;
      const ask = async (
        id: string,
        scale: wire.Memory,
        { zoom, tile }: { zoom: number; tile: number },
      ): Promise<MemoryTile> => {
        const [by, ...device] = id.split(" ");
        const key = requestKey("memory_tile", { device: device.join(" "), by: by!, zoom, tile });
        return memoryTileOf(scale, (await client.host.ask(client.trace, key)) as wire.MemoryTile);
      };
      return new Tiles<MemoryTile, wire.Memory>(ask, this.redraw);
    });
    this.moment = latest(() => {
      const [client, device, grouping] = [
        store.client.value,
        this.device.value,
        this.grouping.value,
      ];
      if (!client || !device || !grouping) return null;
      const { moment } = view.value;
      const group = this.group.value;
      return client.ask<wire.MemoryMoment>("memory_moment", {
        device: device.id,
        ...(moment === null ? {} : { time: moment }),
        ...(group === null || !store.host.live ? {} : { by: grouping.by, group }),
      });
    });
  }

  get end(): number {
    return this.about.value.value?.end_ns ?? 1;
  }

  /** The moment whose contents are shown. */
  get time(): number {
    return this.store.view.value.memory.moment ?? this.device.value?.peak_ns ?? 0;
  }

  set(change: Partial<MemoryView>): void {
    this.store.set({ memory: { ...this.store.view.value.memory, ...change } });
  }

  /** Shows what lives at a moment, which comes into sight. */
  goTo(moment: number): void {
    const [window, size] = [this.window.peek(), this.window.peek().to - this.window.peek().from];
    this.set({ moment });
    if (moment < window.from || moment > window.to)
      this.show({ from: moment - size / 2, to: moment + size / 2 });
  }

  /** Shows a part of the axis: where there is a timeline it goes along. */
  show(span: Span): void {
    if (this.store.stepless.peek()) this.zoomed.value = within(span, this.end);
    else axisOf(this.store).show(span);
  }

  /** Shows all of it; of a timeline all of its lowest level. */
  showAll(): void {
    if (this.store.stepless.peek()) this.zoomed.value = null;
    else axisOf(this.store).showAll();
  }

  /** The tiles that show the window. */
  shown(pixels: number): Piece<MemoryTile>[] {
    const [scale, device] = [this.about.value.value, this.device.value];
    const [grouping, tiles] = [this.grouping.value, this.tiles.value];
    if (!scale || !device || !grouping || !tiles) return [];
    return tiles.shown(`${grouping.by} ${device.id}`, scale, this.window.value, pixels, 1);
  }

  /** Says once a frame that tiles arrived. */
  private readonly redraw = (): void => {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.arrived.value++;
    });
  };
}

export const memoryOf = perStore((store) => new MemoryState(store));
