import type { ComponentChildren, JSX } from "preact";
import type { Details, EventLink } from "../api/types";
import {
  bytes,
  categoryName,
  count,
  duration,
  grouped,
  percent,
  plural,
  sideName,
  words,
} from "../base/format";
import { parent } from "../base/path";
import { noteChosen } from "../state/notes";
import type { Store } from "../state/store";
import { WithAnswer } from "../widgets/answer";
import { Bound } from "./overview";
import { showLine } from "./source";
import { timeText } from "./timeline/tooltip";

/** Everything recorded of the chosen operation. */
export function DetailsPane({ store }: { store: Store }): JSX.Element {
  const { subject } = store.view.value;
  const chosen = store.selected.value.value;
  return (
    <>
      {subject && chosen && (
        <p class="subject">
          <strong>{chosen.title}</strong>: {plural(chosen.total, "event")}; the longest is shown.
        </p>
      )}
      <WithAnswer answer={store.details}>
        {(value) => <Whole store={store} value={value} />}
      </WithAnswer>
    </>
  );
}

/** Letters of a name that would take more than three lines in large letters. */
const LONG = 80;

type Part = { store: Store; value: Details };

function Whole({ store, value }: Part): JSX.Element {
  return (
    <>
      <h2 class={value.name.length > LONG ? "long" : ""}>
        {value.kind === "stage" ? words(value.name) : value.name}
      </h2>
      {value.full_name !== value.name && (
        <p class="full-name" role="region" aria-label="Full name" tabIndex={0}>
          {value.full_name}
        </p>
      )}
      <p class="chips">
        <span class="chip-text">
          {value.kind === "event" ? categoryName(value.category) : value.kind}
        </span>
        {value.cpu_ns > 0 && value.device_ns > 0 && (
          <span>
            bound by <Bound by={value.bound_by} />
          </span>
        )}
        {!store.place.value && parent(value.path) !== "" && (
          <button
            type="button"
            class="chip"
            data-action="open"
            title="Show the level that lists it (Enter)"
            onClick={() => store.open(parent(value.path), value.path)}
          >
            Open its level
          </button>
        )}
        <button
          type="button"
          class="chip"
          data-action="note"
          title="Pin a note to it (n)"
          onClick={() => noteChosen(store)}
        >
          Note
        </button>
      </p>
      <Facts store={store} value={value} />
      <Spread store={store} />
      <Kernel value={value} />
      <DeviceWork store={store} value={value} />
      <Instances store={store} value={value} />
      <Arguments value={value} />
    </>
  );
}

/** What all the instances are of: a stage in words, all else as it is called. */
function instanceName(value: Details, of: string): string {
  if (value.kind === "stage") return words(of);
  return of === value.full_name ? value.name : of;
}

function Facts({ store, value }: Part): JSX.Element {
  const { module, launch, track } = value;
  return (
    <Pairs>
      {value.cpu_ns > 0 && <Pair name="CPU">{duration(value.cpu_ns)}</Pair>}
      {value.self_ns > 0 && <Pair name="self">{duration(value.self_ns)}</Pair>}
      {value.device_ns > 0 && <Pair name="device, busy">{duration(value.device_ns)}</Pair>}
      {value.recompute_ns > 0 && <Pair name="recomputed">{duration(value.recompute_ns)}</Pair>}
      {launch && (
        <Pair name="launched by">
          <EventButton store={store} link={launch} /> {duration(launch.delay_ns)} before
        </Pair>
      )}
      <Pair name="step">{value.rank ? `${value.step}, rank ${value.rank}` : value.step}</Pair>
      {value.stage && <Pair name="stage">{words(value.stage)}</Pair>}
      {module && (
        <Pair name="module">
          <button
            type="button"
            class="link"
            onClick={() => void store.choosePart({ module: module.id })}
          >
            {module.path || module.class}
          </button>{" "}
          <span class="dim">{module.class}</span>
        </Pair>
      )}
      {value.source.slice(0, 4).map((one) => (
        <Pair key={`${one.what}${one.file}${one.line}`} name={PLACES[one.what] ?? one.what}>
          <SourceLink store={store} file={one.file} line={one.line} />
        </Pair>
      ))}
      {track && <Pair name={track.stream === null ? "thread" : "stream"}>{track.name}</Pair>}
      {value.forward && (
        <Pair name="forward partner">
          <EventButton store={store} link={value.forward} />
        </Pair>
      )}
      {value.backward && (
        <Pair name="backward partner">
          <EventButton store={store} link={value.backward} />
        </Pair>
      )}
      {value.start_ns !== null && (
        <Pair name="start">
          <Start
            store={store}
            at={value.start_ns}
            length={Math.max(value.cpu_ns, value.device_ns)}
          />
        </Pair>
      )}
      <Pair name="raw events">{grouped(value.events)}</Pair>
    </Pairs>
  );
}

/** Follows the zoom by itself, as the rest of the details need not. */
function Start(props: { store: Store; at: number; length: number }): JSX.Element {
  return <>{timeText(props.store, props.at, props.length)}</>;
}

const PLACES: Record<string, string> = { frame: "in", call: "called at", class: "written at" };

function SourceLink({
  store,
  file,
  line,
}: {
  store: Store;
  file: string;
  line: number;
}): JSX.Element {
  const open = (): void => showLine(store, { file, line });
  return (
    <button type="button" class="link" title={file} data-action="source" onClick={open}>
      {file.slice(file.lastIndexOf("/") + 1)}:{line}
    </button>
  );
}

function EventButton({ store, link }: { store: Store; link: EventLink }): JSX.Element {
  return (
    <button type="button" class="link" onClick={() => void store.goTo(link.event)}>
      {link.name}
    </button>
  );
}

/** One of the slowest instances: a link, unless it is a stage or a step, which is no event. */
function InstanceName(props: {
  store: Store;
  event: number | null;
  step: number | null;
}): JSX.Element {
  const name = props.step === null ? "outside all steps" : `in step ${props.step}`;
  if (props.event === null) return <>{name}</>;
  return <EventButton store={props.store} link={{ event: props.event, name }} />;
}

/** How the copies of a folded operation differ, out of its level. */
function Spread({ store }: { store: Store }): JSX.Element | null {
  const place = store.place.value;
  if (!place) return null;
  const one = place.level.operation(place.index);
  if (one.count < 2) return null;
  const most = Math.max(one.most, 1);
  return (
    <section aria-label="Spread">
      <h3>
        {one.kind === "repeat"
          ? `Folded: ${count(one.count)} copies`
          : `${count(one.count)} operations`}
      </h3>
      <div class="range" aria-hidden="true">
        <span class="range-span" style={{ left: `${(one.least / most) * 100}%`, right: "0" }} />
        <span class="range-mean" style={{ left: `${(one.mean / most) * 100}%` }} />
      </div>
      <Pairs>
        <Pair name="least">{duration(one.least)}</Pair>
        <Pair name="mean">{duration(one.mean)}</Pair>
        <Pair name="most">
          <button
            type="button"
            class="link"
            onClick={() => openSlowest(store, one.path, one.slowest)}
          >
            {duration(one.most)}
          </button>
        </Pair>
      </Pairs>
    </section>
  );
}

function openSlowest(store: Store, path: string, slowest: string): void {
  if (slowest) store.open(path, `${path}/${slowest}`);
}

function Kernel({ value }: { value: Details }): JSX.Element | null {
  const { kernel } = value;
  if (!kernel) return null;
  const sizes = (all: number[] | null): string | null => all && all.join(" × ");
  const rows: [string, string | null][] = [
    ["grid", sizes(kernel.grid)],
    ["block", sizes(kernel.block)],
    ["registers per thread", kernel.registers === null ? null : String(kernel.registers)],
    ["shared memory", kernel.shared_bytes === null ? null : bytes(kernel.shared_bytes)],
    ["estimated occupancy", kernel.occupancy === null ? null : percent(kernel.occupancy)],
    ["blocks per SM", kernel.blocks_per_sm === null ? null : count(kernel.blocks_per_sm)],
    ["warps per SM", kernel.warps_per_sm === null ? null : count(kernel.warps_per_sm)],
  ];
  const told = rows.filter((one): one is [string, string] => one[1] !== null);
  if (!told.length) return null;
  return (
    <section aria-label="Kernel">
      <h3>Launch</h3>
      <Pairs>
        {told.map(([name, text]) => (
          <Pair key={name} name={name}>
            {text}
          </Pair>
        ))}
      </Pairs>
    </section>
  );
}

function DeviceWork({ store, value }: Part): JSX.Element | null {
  const work = value.device_work;
  if (!work?.count) return null;
  const streams = new Set(work.rows.map((one) => one.stream)).size;
  return (
    <section aria-label="Device work">
      <h3>
        Device work <span class="dim">{countText(work.rows.length, work.count)}</span>
      </h3>
      <table class="table small">
        <thead>
          <tr>
            <th scope="col">kernel</th>
            <th scope="col" class="number">
              time
            </th>
            <th scope="col" class="number" title="from the launch to the kernel's start">
              delay
            </th>
            {streams > 1 && (
              <th scope="col" class="number minor">
                stream
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {work.rows.slice(0, 12).map((one) => (
            <tr key={one.event}>
              <td class="name-text" title={one.full_name}>
                <EventButton store={store} link={one} />
              </td>
              <td class="number">{duration(one.duration_ns)}</td>
              <td class="number">{one.delay_ns === null ? "–" : duration(one.delay_ns)}</td>
              {streams > 1 && <td class="number minor">{one.stream ?? "–"}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function countText(shown: number, all: number): string {
  const rows = Math.min(shown, 12);
  return rows < all ? `the longest ${rows} of ${grouped(all)}` : grouped(all);
}

function Instances({ store, value }: Part): JSX.Element | null {
  const { instances } = value;
  if (!instances || instances.count < 2) return null;
  return (
    <section aria-label="Instances">
      <h3>
        All {grouped(instances.count)}{" "}
        {instances.of === "steps" ? "steps" : `of ${instanceName(value, instances.of)}`}
        <span class="dim">, {sideName(instances.side)} time</span>
      </h3>
      <Pairs>
        <Pair name="total">{duration(instances.total_ns)}</Pair>
        <Pair name="mean ± std">
          {duration(instances.mean_ns)} ± {duration(instances.std_ns)}
        </Pair>
        <Pair name="median">{duration(instances.median_ns)}</Pair>
        <Pair name="min – max">
          {duration(instances.least_ns)} – {duration(instances.most_ns)}
        </Pair>
      </Pairs>
      {instances.shapes.length > 1 && (
        <table class="table small">
          <thead>
            <tr>
              <th scope="col">shapes</th>
              <th scope="col" class="number">
                count
              </th>
              <th scope="col" class="number">
                mean
              </th>
            </tr>
          </thead>
          <tbody>
            {instances.shapes.slice(0, 8).map((one) => (
              <tr key={one.shapes}>
                <td class="code wrap">{one.shapes}</td>
                <td class="number">{grouped(one.count)}</td>
                <td class="number">{duration(one.mean_ns)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <table class="table small">
        <thead>
          <tr>
            <th scope="col">slowest</th>
            <th scope="col" class="number">
              time
            </th>
          </tr>
        </thead>
        <tbody>
          {instances.rows.slice(0, 8).map((one, row) => (
            <tr key={one.event ?? `row ${row}`}>
              <td>
                <InstanceName store={store} event={one.event} step={one.step} />
              </td>
              <td class="number">{duration(one.duration_ns)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Arguments({ value }: { value: Details }): JSX.Element | null {
  const all = Object.entries(value.arguments);
  if (!all.length) return null;
  return (
    <section aria-label="Arguments">
      <h3>Arguments</h3>
      <Pairs>
        {all.map(([name, text]) => (
          <Pair key={name} name={name}>
            <span class="code wrap">{typeof text === "string" ? text : JSON.stringify(text)}</span>
          </Pair>
        ))}
      </Pairs>
    </section>
  );
}

function Pairs({ children }: { children: ComponentChildren }): JSX.Element {
  return <dl class="pairs">{children}</dl>;
}

function Pair({ name, children }: { name: string; children: ComponentChildren }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
