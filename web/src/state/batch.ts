import { batch, computed, effect, signal, type ReadonlySignal } from "@preact/signals";
import type { BatchHost } from "../api/batch_host";
import type { BatchProfile, CostNode, PanelPrediction as Prediction } from "../api/batch_types";
import { messageOf } from "../base/error";
import { at } from "../model/choice";
import { follow, keyOf, lineShares, type Metric } from "../model/costs";
import { DevicesStore } from "./devices";

export type Tab = "batch" | "devices";

/** What the page about batch sizes shows: an answer, a choice, and a place in the breakdown. */
export class BatchStore {
  readonly profile = signal<BatchProfile | null>(null);
  readonly problem = signal("");
  readonly metric = signal<Metric>("time");
  readonly tab = signal<Tab>("batch");
  readonly devices: DevicesStore;
  readonly cursor = signal<{ file: string; line: number } | null>(null);
  /** The part that the pointer is on, by its key: it is lit wherever it is drawn. */
  readonly pointed = signal("");
  readonly chosen: ReadonlySignal<Prediction | null>;
  readonly nodes: ReadonlySignal<CostNode[]>;
  private readonly size = signal(0);
  private readonly trail = signal<string[]>([]);
  private dragging = false;
  private writing = 0; // choices that are on their way into the source
  private changes = 0; // how often one set out or arrived
  private loads = 0;

  constructor(readonly host: BatchHost) {
    this.chosen = computed(() => {
      const profile = this.profile.value;
      return profile?.curve.length ? at(profile.curve, this.size.value) : null;
    });
    this.nodes = computed(() => {
      const tree = this.profile.value?.breakdown?.tree;
      return tree ? follow(tree, this.trail.value) : [];
    });
    this.devices = new DevicesStore(host);
    effect(() => {
      const inside = this.nodes.value.slice(1).at(-1);
      host.explore(inside ? lineShares(inside) : null);
    });
    host.onChanged(() => void this.load());
    host.onLine((file, line) => (this.cursor.value = { file, line }));
  }

  /**
   * Ask again; what was measured before stays until the answer is there.
   *
   * @param refused why the latest choice could not be written.
   */
  async load(refused = ""): Promise<void> {
    const [asked, number] = [this.changes, ++this.loads];
    const answer = await this.host.ask().catch(messageOf);
    if (number !== this.loads) return; // asked again meanwhile
    if (typeof answer === "string") {
      this.problem.value = answer;
      return;
    }
    const before = this.profile.peek();
    // The number in the source as it was before the latest choice would take that one back.
    const outdated = this.dragging || this.writing > 0 || this.changes !== asked;
    batch(() => {
      this.problem.value = answer.problem ?? refused;
      if (answer.written !== null && !outdated) this.size.value = answer.written;
      this.profile.value = answer.batch;
    });
    if (before && !sameMeasurement(before, answer.batch)) this.remeasured();
  }

  private remeasured(): void {
    this.devices.forget();
    if (this.tab.value === "devices") void this.devices.load();
  }

  /** Show a tab; other devices are predicted once somebody looks. */
  open(tab: Tab): void {
    this.tab.value = tab;
    if (tab !== "devices") return;
    this.devices.prefer(this.size.value);
    if (!this.devices.answer.value) void this.devices.load();
  }

  /** Choose a batch size; the source follows where there is one. */
  choose(wanted: Prediction, more = false): void {
    const same = wanted.batch === this.size.value;
    this.dragging = more;
    this.size.value = wanted.batch;
    if (!same || !more) void this.write(wanted.batch, more);
  }

  private async write(size: number, more: boolean): Promise<void> {
    this.writing++;
    this.changes++;
    const refused = await this.host.choose(size, more).then(() => "", messageOf);
    this.writing--;
    this.changes++;
    if (!this.writing && !this.dragging) await this.load(refused);
  }

  /** Light up a node and its line as long as the pointer is on it; null for none. */
  point(node: CostNode | null): void {
    this.pointed.value = node ? keyOf(node) : "";
    this.host.highlight(node?.file ?? null, node?.line ?? 0);
  }

  /** Open the line of a node. */
  reveal({ file, line }: CostNode): void {
    if (file && line) this.host.reveal(file, line);
  }

  /** Show what is inside a node of those on screen. */
  descend(node: CostNode): void {
    this.trail.value = [...this.nodes.value.slice(1).map(keyOf), keyOf(node)];
  }

  /** Back to the node so many places along the breadcrumbs. */
  ascend(places: number): void {
    this.trail.value = this.trail.value.slice(0, places);
  }
}

function sameMeasurement(one: BatchProfile, other: BatchProfile | null): boolean {
  return JSON.stringify(one.points) === JSON.stringify(other?.points);
}
