import type { ComponentChildren, JSX } from "preact";
import type { Prediction } from "../../api/types";
import { milliseconds, percent, words } from "../../base/format";
import { bothSides, compared, speed, type Compared } from "../../model/changes";
import { ShareBar } from "../../widgets/bars";
import { FactList } from "../../widgets/fact_list";

const MOST_MODULES = 12;
const SIDES = {
  "only CPU busy": "cpu_only_ms",
  "only device busy": "device_only_ms",
  "both, in parallel": "parallel_ms",
  "neither": "idle_ms",
} as const; // prettier-ignore

/** The prediction in a sentence and in numbers; the timelines go between them. */
export function Figures(props: { answer: Prediction; children: ComponentChildren }): JSX.Element {
  const { answer } = props;
  const changed = answer.changes.length > 0;
  const { before, after } = bothSides(answer.critical_path);
  const modules = compared(before.modules ?? {}, after.modules ?? {}).slice(0, MOST_MODULES);
  return (
    <>
      <p class="whatif-sentence" role="status">
        {sentence(answer)}
      </p>
      {!changed && <p class="dim">Switch on a change to see its predicted effect.</p>}
      <Numbers answer={answer} />
      {props.children}
      <div class="whatif-tables">
        <Comparison caption="Who was busy" rows={sides(answer)} changed={changed} />
        <Comparison
          caption="Critical path by stage"
          rows={compared(before.stages ?? {}, after.stages ?? {}).map(readable)}
          changed={changed}
        />
        {modules.length > 1 && (
          <Comparison caption="Critical path by module" rows={modules} changed={changed} />
        )}
        <section>
          <h2 class="pane-heading">Assumptions</h2>
          <ul class="whatif-assumptions">
            {answer.assumptions.map((one) => (
              <li key={one}>{one}</li>
            ))}
          </ul>
        </section>
      </div>
    </>
  );
}

function sentence(answer: Prediction): string {
  const [now, then] = [answer.replayed_step_ms, answer.predicted_step_ms];
  if (!answer.changes.length) return `A step takes ${milliseconds(answer.measured_step_ms)}.`;
  return `A step would take ${milliseconds(then)} instead of ${milliseconds(now)}: ${speed(answer)}.`;
}

function Numbers({ answer }: { answer: Prediction }): JSX.Element {
  const error = answer.replay_error;
  const rows: [string, string, string][] = [
    ["measured", milliseconds(answer.measured_step_ms), "Until the next step begins"],
    [
      "replayed",
      `${milliseconds(answer.replayed_step_ms)} (${percent(Math.abs(error))} off)`,
      "The same steps simulated without a change, and the error against the measurement",
    ],
  ];
  if (answer.changes.length) {
    rows.push(
      ["predicted", milliseconds(answer.predicted_step_ms), "Simulated with the changes"],
      ["range", between(answer.range), "If the changes gain most and least, with the known errors"],
      ["speedup", answer.speedup === null ? "∞" : `${answer.speedup.toFixed(2)}×`, "Replayed over predicted"],
    ); // prettier-ignore
  }
  return <FactList class="whatif-numbers" facts={rows} />;
}

/** A narrow range keeps the digits in which its ends differ. */
function between([low, high]: [number, number]): string {
  const [least, most] = [milliseconds(low), milliseconds(high)];
  return least === most ? `${low.toFixed(2)} to ${high.toFixed(2)}\u202fms` : `${least} to ${most}`;
}

function sides(answer: Prediction): Compared[] {
  const { before, after } = bothSides(answer.breakdown);
  return Object.entries(SIDES).map(([name, key]) => ({
    name,
    before: before[key],
    after: after[key],
  }));
}

function readable(row: Compared): Compared {
  return { ...row, name: words(row.name) };
}

/** Parts of the step now and then, ms a step; only now where nothing is changed. */
function Comparison(props: { caption: string; rows: Compared[]; changed: boolean }): JSX.Element {
  const { caption, rows, changed } = props;
  const most = Math.max(...rows.map((one) => Math.max(one.before, one.after)), 1e-9);
  return (
    <table class="table small whatif-compared">
      <caption class="pane-heading">{caption}</caption>
      <thead>
        <tr>
          <th>
            <span class="unseen">part</span>
          </th>
          <td aria-hidden="true" />
          <th class="number">now</th>
          {changed && <th class="number">then</th>}
          {changed && <th class="number">change</th>}
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.name}>
            <td class="whatif-name" title={row.name}>
              {row.name}
            </td>
            <td class="whatif-bars">
              <ShareBar share={row.before / most} kind="before" />
              {changed && <ShareBar share={row.after / most} kind="after" />}
            </td>
            <td class="number">{milliseconds(row.before)}</td>
            {changed && <td class="number">{milliseconds(row.after)}</td>}
            {changed && <td class="number">{difference(row.after - row.before)}</td>}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function difference(ms: number): string {
  if (Math.abs(ms) < 0.0005) return "–";
  return (ms < 0 ? "−" : "+") + milliseconds(Math.abs(ms));
}
