import type { JSX } from "preact";
import type { AreaAnswer, DeviceShare } from "../api/types";
import { causeName } from "../base/causes";
import { duration, grouped, operationRate, percent, plural, words } from "../base/format";
import { counterText } from "../model/counters";
import { axisOf } from "../state/axis";
import { noteMoment } from "../state/notes";
import { latest } from "../state/latest";
import { perStore } from "../state/per_store";
import type { Store } from "../state/store";
import { WithAnswer } from "../widgets/answer";
import { counterSide } from "./timeline/counters";
import { deviceChip } from "./timeline/level";
import { timeText } from "./timeline/tooltip";

const SHOWN = 12;

const areaOf = perStore((store) =>
  latest(() => {
    const [client, { area, areaBy }] = [store.client.value, store.view.value];
    return client && area ? client.area(area.from, area.to, area.tracks, areaBy) : null;
  }),
);

/** The statistics of the area that somebody dragged over. */
export function AreaPane({ store }: { store: Store }): JSX.Element {
  const area = store.view.value.area!;
  const axis = axisOf(store);
  const time = (at: number): string => timeText(store, at, area.to - area.from);
  return (
    <>
      <h2>Selected {duration(area.to - area.from)}</h2>
      <p class="dim">
        from {time(area.from)} to {time(area.to)}
        {area.tracks.length > 0 && ` on ${plural(area.tracks.length, "track")}`}
      </p>
      <p class="chips">
        <button type="button" onClick={() => axis.show(area)}>
          Zoom to it
        </button>
        <button type="button" data-action="note" onClick={() => noteMoment(store, area.from)}>
          Note
        </button>
      </p>
      <WithAnswer answer={areaOf(store)}>
        {(value) => <Statistics store={store} value={value} />}
      </WithAnswer>
    </>
  );
}

function Statistics({ store, value }: { store: Store; value: AreaAnswer }): JSX.Element {
  const length = value.end_ns - value.start_ns;
  return (
    <>
      {value.devices.map((one) => (
        <Device key={`${one.rank}.${one.device}`} store={store} share={one} length={length} />
      ))}
      {value.flops_per_s !== null && (
        <dl class="pairs">
          <div>
            <dt>operations</dt>
            <dd>
              {value.known < 0.995 && "at least "}
              {operationRate(value.flops_per_s)}
            </dd>
          </div>
        </dl>
      )}
      {value.threads.length > 0 && (
        <Shares title="Threads, busy">
          {value.threads.map(([name, ns], i) => (
            <Row key={i} name={name} count={null} ns={ns} length={length} />
          ))}
        </Shares>
      )}
      <Counters store={store} rows={value.counters} />
      <Work store={store} value={value} />
      {!value.groups.length && <p class="note">Nothing runs here.</p>}
    </>
  ); // prettier-ignore
}

function Device(props: { store: Store; share: DeviceShare; length: number }): JSX.Element {
  const { share, length, store } = props;
  const ranks = store.overview.value.value?.ranks.length ?? 1;
  const idle = Object.entries(share.idle_ns).sort((a, b) => b[1] - a[1]);
  return (
    <Shares title={`${ranks > 1 ? `Rank ${share.rank}, device` : "Device"} ${share.device}`}>
      <Row name="computing" count={null} ns={share.computing_ns} length={length} />
      {share.copying_ns > 0 && (
        <Row name="only copying" count={null} ns={share.copying_ns} length={length} />
      )}
      {share.communicating_ns > 0 && (
        <Row name="only communicating" count={null} ns={share.communicating_ns} length={length} />
      )}
      {idle.map(([cause, ns]) => (
        <Row key={cause} name={`idle: ${causeName(cause)}`} count={null} ns={ns} length={length} />
      ))}
    </Shares>
  ); // prettier-ignore
}

/** Least, mean and most of each counter that the trace has. */
function Counters(props: { store: Store; rows: AreaAnswer["counters"] }): JSX.Element | null {
  const about = axisOf(props.store).about.value.value?.counters ?? [];
  const device = deviceChip(props.store);
  const ranks = new Set(about.map((one) => one.rank)).size;
  const rows = Object.entries(props.rows);
  if (!rows.length) return null;
  return (
    <section aria-label="Counters in the area">
      <h3>Counters</h3>
      <table class="table small">
        <thead>
          <tr>
            <th scope="col">counter</th>
            <th scope="col" class="number">
              min
            </th>
            <th scope="col" class="number">
              mean
            </th>
            <th scope="col" class="number">
              max
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([id, { least, mean, most }]) => {
            const one = about.find((counter) => counter.id === id);
            if (!one) return null;
            const rank = ranks > 1 ? `rank ${one.rank} ` : "";
            return (
              <tr key={id}>
                <td title={one.name}>
                  {rank}
                  {counterSide(one, device)} {one.short}
                </td>
                {[least, mean, most].map((value, at) => (
                  <td key={at} class="number">
                    {value === null ? "–" : counterText(value, one.unit)}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </section>
  );
}

/** The work in the area, by the column of the events that somebody chooses. */
function Work({ store, value }: { store: Store; value: AreaAnswer }): JSX.Element | null {
  const { groups, groups_count, columns } = value;
  const by = store.view.value.areaBy;
  const length = value.end_ns - value.start_ns;
  const coded = by === "stage" || by === "kind" || by === "category";
  const choice = (
    <>
      <label>
        by{" "}
        <select
          aria-label="Group by"
          value={by}
          onChange={(event) => store.set({ areaBy: event.currentTarget.value })}
        >
          {columns.map((one) => (
            <option key={one} value={one}>
              {words(one)}
            </option>
          ))}
        </select>
      </label>{" "}
      {groups_count > SHOWN && `the longest ${SHOWN} of ${grouped(groups_count)}`}
    </>
  );
  if (!groups.length) return null;
  return (
    <Shares title={value.work_is === "kernels" ? "Kernels" : "Operators"} note={choice}>
      {groups.slice(0, SHOWN).map((one, i) => (
        <Row
          key={i}
          name={(coded ? words(one.name) : one.name) || "none"}
          count={one.count}
          ns={one.ns}
          length={length}
          onOpen={() =>
            void (one.module >= 0
              ? store.choosePart({ module: one.module })
              : store.goTo(one.event))
          }
        />
      ))}
    </Shares>
  );
}

function Shares(props: {
  title: string;
  note?: JSX.Element;
  children: JSX.Element | (JSX.Element | false | JSX.Element[])[] | JSX.Element[];
}): JSX.Element {
  return (
    <section aria-label={`${props.title} in the area`}>
      <h3>
        {props.title} <span class="dim">{props.note}</span>
      </h3>
      <table class="table small shares">
        <tbody>{props.children}</tbody>
      </table>
    </section>
  );
}

function Row(props: {
  name: string;
  count: number | null;
  ns: number;
  length: number;
  onOpen?: () => void;
}): JSX.Element {
  const { name, count, ns, length, onOpen } = props;
  return (
    <tr>
      <td class="name-text" title={name}>
        {onOpen ? (
          <button type="button" class="link" onClick={onOpen}>
            {name}
          </button>
        ) : (
          name
        )}
        {count !== null && <span class="dim"> ×{grouped(count)}</span>}
      </td>
      <td class="number">{duration(ns)}</td>
      <td class="number">{percent(ns / length)}</td>
    </tr>
  );
}
