import type { JSX } from "preact";
import { milliseconds, percent } from "../../base/format";
import { median } from "../../model/heat";
import { partName, type JobStore } from "../../state/job";

/** The chosen rank compared with the median rank, and the way to its trace. */
export function RankPanel({ store }: { store: JobStore }): JSX.Element {
  const place = store.chosen;
  if (place < 0)
    return (
      <p class="note">
        Choose a rank in a map or in the table to compare it with the median rank. The left and
        right arrows go from rank to rank.
      </p>
    );
  const { job } = store;
  const rank = job.ranks[place]!;
  return (
    <section class="job-rank" aria-label={`Rank ${rank.rank}`}>
      <h2 class="pane-heading">
        Rank {rank.rank}{" "}
        <span class="dim">
          {[rank.node, rank.device, rank.file.split("/").pop()].filter(Boolean).join(" · ")}
        </span>
      </h2>
      <Links store={store} place={place} />
      {job.findings
        .filter((one) => one.ranks.includes(rank.rank))
        .map((one) => (
          <p key={one.sentence}>{one.sentence}</p>
        ))}
      <Stages store={store} place={place} />
    </section>
  );
}

/** Its own trace, alone and compared with that of the rank that works like the median rank. */
function Links({ store, place }: { store: JobStore; place: number }): JSX.Element | null {
  const { ranks, median_rank } = store.job;
  const [mine, usual] = [ranks[place]!, ranks[median_rank]!];
  if (!mine.trace) return null;
  return (
    <p class="job-links">
      <a href={`/index.html#trace=${mine.trace}`}>Open its trace</a>
      {usual.trace && usual.trace !== mine.trace && (
        <a href={`/index.html#trace=${mine.trace}&pane=compare&against=${usual.trace}`}>
          Compare with rank {usual.rank}, which works like the median rank
        </a>
      )}
    </p>
  );
}

function Stages({ store, place }: { store: JobStore; place: number }): JSX.Element {
  const { job, own } = store;
  const waits = job.ranks.map((one) => one.waiting_ms);
  const rows: [string, readonly number[]][] = [
    ...job.stages.map((name, stage): [string, number[]] => [name, job.work[stage]!]),
    ["own work", own],
    ["waiting and transfers", waits],
  ];
  const shown = rows.filter(([, row]) => Math.max(...row) > 0.001 * job.step_ms);
  return (
    <table class="table small">
      <caption class="unseen">Own work of the chosen rank by stage</caption>
      <thead>
        <tr>
          <th scope="col">medians over the steps</th>
          <th scope="col" class="number">
            this rank
          </th>
          <th scope="col" class="number minor">
            median rank
          </th>
          <th scope="col" class="number">
            difference
          </th>
        </tr>
      </thead>
      <tbody>
        {shown.map(([name, row]) => {
          const [mine, usual] = [row[place]!, median(row)];
          const share = usual ? ` (${percent(Math.abs(mine / usual - 1))})` : "";
          const [sign, side] = mine >= usual ? ["+", "more"] : ["−", "less"];
          const notable = Math.abs(mine - usual) > NOTABLE * job.step_ms;
          return (
            <tr key={name}>
              <th scope="row">{partName(name)}</th>
              <td class="number">{milliseconds(mine)}</td>
              <td class="number minor">{milliseconds(usual)}</td>
              <td class={`number ${notable ? `difference-${side}` : "dim"}`}>
                {mine === usual ? "same" : `${sign}${milliseconds(Math.abs(mine - usual))}${share}`}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

/** Of the step: what is smaller is noise. */
const NOTABLE = 0.01;
