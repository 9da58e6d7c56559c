import type { JSX } from "preact";
import type { Memory, MemoryDevice } from "../../api/types";
import { bytes, plural, words } from "../../base/format";
import { memoryOf, type MemoryState } from "../../state/memory";
import type { Store } from "../../state/store";
import { Coded } from "../../widgets/coded";
import { WithAnswer } from "../../widgets/answer";
import type { Pane } from "../pane";
import { Areas } from "./areas";
import { LivingTable } from "./living";
import { Segments } from "./segments";
import { Stack } from "./stack";

export const memory: Pane = {
  id: "memory",
  title: "Memory",
  hint: "Memory over time, what lives at a moment, and the holes between",
  View: ({ store }) => (
    <WithAnswer answer={memoryOf(store).about}>
      {(value) => <Whole store={store} about={value} />}
    </WithAnswer>
  ),
};

function Whole({ store, about }: { store: Store; about: Memory }): JSX.Element | null {
  const state = memoryOf(store);
  const device = state.device.value;
  if (!device) return null;
  return (
    <div class="memory">
      <Tools about={about} state={state} device={device} />
      <Verdict device={device} />
      <Areas store={store} state={state} device={device} />
      <div class="memory-moment">
        <LivingTable store={store} state={state} device={device} />
        <div>
          <Stack state={state} />
          <Segments store={store} state={state} kinds={about.kinds} />
        </div>
      </div>
    </div>
  );
}

/** Which device, divided by what, and the moments that matter. */
function Tools(props: { about: Memory; state: MemoryState; device: MemoryDevice }): JSX.Element {
  const { about, state, device } = props;
  const by = state.grouping.value?.by ?? "";
  return (
    <div class="pane-tools memory-tools">
      {about.devices.length > 1 && (
        <label>
          <span class="dim">memory of</span>{" "}
          <select
            aria-label="Device"
            value={device.id}
            onChange={(event) => state.set({ device: event.currentTarget.value, group: null })}
          >
            {about.devices.map((one) => (
              <option key={one.id} value={one.id}>
                {one.id}
              </option>
            ))}
          </select>
        </label>
      )}
      {device.groupings.length > 1 && (
        <label>
          <span class="dim">by</span>{" "}
          <select
            aria-label="Areas by"
            value={by}
            onChange={(event) => state.set({ by: event.currentTarget.value, group: null })}
          >
            {device.groupings.map((one) => (
              <option key={one.by} value={one.by}>
                {one.by}
              </option>
            ))}
          </select>
        </label>
      )}
      <button
        type="button"
        title="Show what lives when most is in use"
        onClick={() => state.goTo(device.peak_ns)}
      >
        Show the peak
      </button>
      {device.failures.slice(0, 3).map((one) => (
        <button
          key={one.time_ns}
          type="button"
          class="memory-failure"
          title="Show what lives when the allocation failed"
          onClick={() => state.goTo(one.time_ns)}
        >
          Out of memory{one.bytes === null ? "" : `: ${bytes(one.bytes)} requested`}
        </button>
      ))}
      <span class="dim memory-extent">
        {plural(device.changes, "change")}
        {device.reserved_bytes !== null && `, at most ${bytes(device.reserved_bytes)} reserved`}
        {!device.lifetimes && "; without addresses, so only totals are known"}
      </span>
    </div>
  );
}

function Verdict({ device }: { device: MemoryDevice }): JSX.Element {
  return (
    <section class="memory-verdict" aria-label="Memory verdict">
      <p>
        Peak {bytes(device.peak_bytes)} in use. <Coded text={device.verdict} />
      </p>
      {device.findings.length > 0 && (
        <ul aria-label="Advice">
          {device.findings.map((one) => (
            <li key={one.rule} title={one.place || undefined}>
              <b>{one.what}</b> <Coded text={one.advice} />{" "}
              <span class="dim">
                could free {bytes(one.gain_bytes)} at most ({words(one.rule)})
              </span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
