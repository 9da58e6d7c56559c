import { batch, computed, signal, type ReadonlySignal } from "@preact/signals";
import type { BatchHost, DevicesWanted } from "../api/batch_host";
import type { DevicesAnswer } from "../api/batch_types";
import { messageOf } from "../base/error";

/** The predictions for other devices: what is asked, the answer, and the batch size on show. */
export class DevicesStore {
  readonly wanted = signal<DevicesWanted>({
    on: "H100, A100-80GB, A100, L4, T4",
    ranks: 1,
    bandwidth: 100,
  });
  readonly answer = signal<DevicesAnswer | null>(null);
  readonly problem = signal("");
  readonly busy = signal(false);
  readonly sizes: ReadonlySignal<number[]>;
  readonly size: ReadonlySignal<number | null>;
  private readonly preferred = signal(0);
  private asks = 0;

  constructor(private readonly host: BatchHost) {
    this.sizes = computed(() =>
      (this.answer.value?.devices[0]?.predictions ?? []).map((one) => one.batch),
    );
    this.size = computed(() => nearest(this.sizes.value, this.preferred.value));
  }

  /** Whether there is anything to show or to ask for. */
  get known(): boolean {
    return this.host.knowsDevices;
  }

  /** Show the batch size nearest to this one. */
  prefer(size: number): void {
    this.preferred.value = size;
  }

  /** Forget an answer that a newer measurement has outdated. */
  forget(): void {
    this.asks++;
    batch(() => {
      this.answer.value = null;
      this.busy.value = false;
    });
  }

  async load(): Promise<void> {
    const number = ++this.asks;
    this.busy.value = true;
    const reply = await this.host.devices(this.wanted.value).catch(messageOf);
    if (number !== this.asks) return; // asked again meanwhile
    batch(() => {
      this.busy.value = false;
      const failed = typeof reply === "string";
      this.problem.value = failed ? reply : (reply.problem ?? "");
      if (!failed && reply.devices) this.answer.value = reply.devices;
    });
  }
}

function nearest(sizes: number[], wanted: number): number | null {
  if (!sizes.length) return null;
  return sizes.reduce((best, one) =>
    Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best,
  );
}
