import type { JSX } from "preact";
import type {
  DevicePrediction,
  DeviceRow,
  DevicesAnswer,
  MeasuredEnergy,
  RangedValue,
  RankPrediction,
} from "../../api/batch_types";
import { bytes, grouped, milliseconds, percent, significant } from "../../base/format";
import type { DevicesStore } from "../../state/devices";

/** The measured step on other devices: time, fit, energy and price. */
export function Devices({ store, asks }: { store: DevicesStore; asks: boolean }): JSX.Element {
  const answer = store.answer.value;
  return (
    <section class="devices" aria-label="Other devices" aria-busy={store.busy.value}>
      {asks && <Controls store={store} />}
      {store.problem.value && (
        <p class="batch-problem" role="alert">
          {store.problem.value}
        </p>
      )}
      {answer ? (
        <Answer store={store} answer={answer} />
      ) : (
        <p class="nothing">{store.busy.value ? "Predicting…" : "Nothing predicted yet."}</p>
      )}
    </section>
  );
}

function Controls({ store }: { store: DevicesStore }): JSX.Element {
  const wanted = store.wanted.value;
  const change = (part: Partial<typeof wanted>) => (store.wanted.value = { ...wanted, ...part });
  return (
    <form
      class="device-controls"
      onSubmit={(event) => {
        event.preventDefault();
        void store.load();
      }}
    >
      <label>
        Devices or instances
        <input
          value={wanted.on}
          onInput={({ currentTarget }) => change({ on: currentTarget.value })}
        />
      </label>
      <label>
        Ranks
        <input
          type="number"
          min={1}
          value={wanted.ranks}
          onInput={({ currentTarget }) => change({ ranks: currentTarget.valueAsNumber || 1 })}
        />
      </label>
      <label>
        Gbit/s
        <input
          type="number"
          min={0.1}
          step="any"
          value={wanted.bandwidth}
          onInput={({ currentTarget }) => change({ bandwidth: currentTarget.valueAsNumber || 10 })}
        />
      </label>
      <button type="submit" disabled={store.busy.value}>
        {store.busy.value ? "Predicting…" : "Predict"}
      </button>
    </form>
  );
}

function Answer({ store, answer }: { store: DevicesStore; answer: DevicesAnswer }): JSX.Element {
  const size = store.size.value;
  const shown = answer.devices.map((row) => ({
    row,
    one: row.predictions.find(({ batch }) => batch === size)!,
  }));
  const most = Math.max(...shown.map(({ one }) => one.throughput.high));
  return (
    <>
      <Sizes store={store} />
      <div class="scrolls">
        <table class="device-table">
          <thead>
            <tr>
              <th scope="col">Device</th>
              <th scope="col">Step</th>
              <th scope="col">Samples/s</th>
              <th scope="col" class="range-head">
                Range
              </th>
              <th scope="col">Memory</th>
              <th scope="col">{millions(answer.samples)} samples</th>
              <th scope="col">Energy, at most</th>
            </tr>
          </thead>
          <tbody>
            {shown.map(({ row, one }) => (
              <Row key={row.name} row={row} one={one} most={most} samples={answer.samples} />
            ))}
          </tbody>
        </table>
      </div>
      {answer.bandwidth_gbps !== null && (
        <Ranks answer={answer} bandwidth={answer.bandwidth_gbps} />
      )}
      <Notes answer={answer} />
    </>
  );
}

function Sizes({ store }: { store: DevicesStore }): JSX.Element {
  return (
    <div class="suggestions" role="group" aria-label="Batch size on other devices">
      <span class="dim">Batch size</span>
      {store.sizes.value.map((size) => (
        <button
          key={size}
          type="button"
          aria-pressed={size === store.size.value}
          onClick={() => store.prefer(size)}
        >
          {size}
        </button>
      ))}
    </div>
  );
}

const FITS = { yes: "fits", no: "does not fit", unsure: "may fit", unknown: "unknown" };

function Row(props: {
  row: DeviceRow;
  one: DevicePrediction;
  most: number;
  samples: number;
}): JSX.Element {
  const { row, one, most, samples } = props;
  return (
    <tr>
      <th scope="row">{row.name}</th>
      <td class="number" title={between(one.ms, milliseconds)}>
        {milliseconds(one.ms.value)}
      </td>
      <td class="number">{significant(one.throughput.value)}</td>
      <td>
        <Bar range={one.throughput} most={most} />
      </td>
      <td>
        {one.bytes && `${bytes(one.bytes.value)} of ${bytes(row.usable_bytes)}, `}
        <span class={`fit-${one.fits}`}>{FITS[one.fits]}</span>
        {one.extrapolated && <span class="dim">, extrapolated</span>}
      </td>
      <td class="number" title={one.usd ? between(one.usd, dollars) : ""}>
        {one.usd ? dollars(one.usd.value) : "no price"}
        <span class="dim"> · {hours(one.hours.value)}</span>
      </td>
      <td class="number">{one.joules ? energy(one.joules.value * samples) : "unknown"}</td>
    </tr>
  );
}

/** A value with its range, on a common scale. */
function Bar({ range, most }: { range: RangedValue; most: number }): JSX.Element {
  const at = (value: number) => `${(100 * value) / most}%`;
  const text = between(range, significant);
  return (
    <>
      <div class="range-bar" aria-hidden="true">
        <span class="range" style={{ left: at(range.low), width: at(range.high - range.low) }} />
        <span class="range-value" style={{ left: at(range.value) }} />
      </div>
      <span class="range-text dim">{text}</span>
    </>
  );
}

function Ranks({ answer, bandwidth }: { answer: DevicesAnswer; bandwidth: number }): JSX.Element {
  return (
    <section aria-label="Data-parallel ranks">
      <h2 class="pane-heading">Data-parallel ranks, {bandwidth} Gbit/s between them</h2>
      <div class="scrolls">
        <table class="device-table">
          <thead>
            <tr>
              <th scope="col">Device</th>
              <th scope="col">Ranks</th>
              <th scope="col">Step</th>
              <th scope="col">Samples/s</th>
              <th scope="col">Efficiency</th>
              <th scope="col">{millions(answer.samples)} samples</th>
            </tr>
          </thead>
          <tbody>
            {answer.devices.flatMap((row) =>
              row.ranks.map((one) => <RankRow key={row.name + one.ranks} row={row} one={one} />),
            )}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function RankRow({ row, one }: { row: DeviceRow; one: RankPrediction }): JSX.Element {
  return (
    <tr>
      <th scope="row">{one.ranks === 2 ? row.name : ""}</th>
      <td class="number">{one.ranks}</td>
      <td class="number" title={between(one.ms, milliseconds)}>
        {milliseconds(one.ms.value)}
      </td>
      <td class="number" title={between(one.throughput, significant)}>
        {significant(one.throughput.value)}
      </td>
      <td class="number">{percent(one.efficiency)}</td>
      <td class="number">{one.usd ? dollars(one.usd.value) : "no price"}</td>
    </tr>
  );
}

function Notes({ answer }: { answer: DevicesAnswer }): JSX.Element {
  return (
    <div class="device-notes dim">
      <p>{answer.sentence}</p>
      <ul>
        {answer.devices.map((row) => (
          <li key={row.name}>
            {row.name}: {row.watts ? `${row.watts} W` : "power limit unknown"}; {price(row)}
            {row.ranks_problem && `; ranks: ${row.ranks_problem}`}
          </li>
        ))}
      </ul>
      <p>
        Data sheets read {answer.data_sheets_date}. Energy is at the power limit.
        {answer.measured && ` ${measuredHere(answer.measured)}`}
      </p>
    </div>
  );
}

function measuredHere({ batch, joules, watts, counter }: MeasuredEnergy): string {
  const power = `${short(joules)} J per sample at ${significant(watts)} W`;
  return `Measured here (${counter}), batch size ${batch}: ${power}.`;
}

function price({ instance }: DeviceRow): string {
  if (!instance) return "no price known";
  const share = instance.count > 1 ? `, 1/${instance.count} of it per device` : "";
  const region = instance.region && instance.region !== "any" ? ` in ${instance.region}` : "";
  const rate = `${short(instance.usd_per_hour)} USD/h${share}`;
  return `${instance.provider} ${instance.name}${region}, ${rate}, ${instance.date}`;
}

function between(range: RangedValue, format: (value: number) => string): string {
  return `${format(range.low)} to ${format(range.high)}`;
}

const JOULES_PER_KWH = 3.6e6;

function energy(joules: number): string {
  return `${short(joules / JOULES_PER_KWH)} kWh`;
}

function dollars(usd: number): string {
  return `$${usd >= 0.1 && usd < 1 ? usd.toFixed(2) : short(usd)}`;
}

function hours(value: number): string {
  return value < 1 ? `${short(value * 60)} min` : `${short(value)} h`;
}

function millions(samples: number): string {
  return samples % 1e6 === 0 ? `${grouped(samples / 1e6)} million` : grouped(samples);
}

/** Two digits of numbers below 1. */
function short(value: number): string {
  return value < 1 ? String(Number(value.toPrecision(2))) : significant(value);
}
