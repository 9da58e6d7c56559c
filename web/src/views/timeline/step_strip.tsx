import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { StepRow } from "../../api/types";
import { duration, milliseconds, plural } from "../../base/format";
import { stepOf } from "../../base/path";
import type { Piece } from "../../model/tiles";
import { stepAt, stepBeside, stepGrid } from "../../model/steps";
import { textMeasure } from "../../render/canvas2d";
import { FONT_SMALL } from "../../render/fitted";
import type { Palette } from "../../render/palette";
import { drawRanks, mapHeight, MOST_ROWS, ROW_PX } from "../../render/ranks";
import { BARS_PX, drawSteps } from "../../render/steps";
import type { AxisState } from "../../state/axis";
import type { Store } from "../../state/store";
import { gutter } from "./scene";

/** The step on screen, or the one to open first. */
function stepNow(store: Store): { rank: number; step: number } | null {
  const start = store.overview.value.value?.start ?? "";
  return stepOf(store.view.value.path ?? "") ?? stepOf(start);
}

/** Opens the next step of the rank, or the one before. */
export function walkSteps(store: Store, by: 1 | -1): void {
  const now = stepNow(store);
  const next = now && stepBeside(store.overview.value.value?.steps ?? [], now, by);
  if (next) store.open(next.id, "");
}

interface StripProps {
  store: Store;
  axis: AxisState;
  width: number;
  palette: Palette;
}

/** The steps of a rank, or what all ranks do in the visible time: a click opens one. */
export function StepStrip(props: StripProps): JSX.Element | null {
  const { store } = props;
  const { steps, ranks = [] } = store.overview.value.value ?? {};
  const now = stepNow(store);
  if (!steps || steps.length < 2 || !now) return null;
  const several = ranks.length > 1;
  const length = steps.find((one) => one.id === `s${now.step}.${now.rank}`)?.runtime_ns ?? 0;
  const narrow = gutter.value < 120;
  const names = several ? (narrow ? 16 : 40) : 0;
  return (
    <div class="step-strip">
      <span class="step-walk" style={{ width: `${gutter.value - names}px` }}>
        <Walk store={store} by={-1} />
        <span class="dim" title={milliseconds(length / 1e6)}>
          {narrow ? now.step : `step ${now.step}`}
        </span>
        <Walk store={store} by={1} />
      </span>
      {several ? (
        <RankMap {...props} now={now} names={names} />
      ) : (
        <Bars {...props} steps={steps} now={now} />
      )}
    </div>
  );
}

interface Now {
  rank: number;
  step: number;
}

function Bars(props: StripProps & { steps: readonly StepRow[]; now: Now }): JSX.Element {
  const { store, width, palette, steps, now } = props;
  const grid = useMemo(() => stepGrid(steps), [steps]);
  const canvas = useRef<HTMLCanvasElement>(null);
  const open = `s${now.step}.${now.rank}`;
  useLayoutEffect(() => {
    drawSteps(canvas.current!, { grid, width, palette, open, measure: textMeasure(FONT_SMALL) });
  }, [grid, width, palette, open]);
  const meet = (event: MouseEvent): StepRow | undefined =>
    stepAt(grid, 0, Math.floor((event.offsetX / width) * grid.numbers.length));
  return (
    <canvas
      ref={canvas}
      role="img"
      aria-label={`${plural(steps.length, "step")}; step ${now.step} is open`}
      style={{ width: `${width}px`, height: `${BARS_PX}px` }}
      onPointerMove={(event) => {
        const step = meet(event);
        event.currentTarget.title = step ? stepTitle(step, false) : "";
      }}
      onClick={(event) => {
        const step = meet(event);
        if (step) store.open(step.id, "");
      }}
    />
  );
}

/** A map of ranks by the time on the axis; of very many, some with the slowest among them. */
function RankMap(props: StripProps & { now: Now; names: number }): JSX.Element {
  const { store, axis, width, palette, now, names } = props;
  const { steps = [], ranks = [], job } = store.overview.value.value ?? {};
  const canvas = useRef<HTMLCanvasElement>(null);
  const slowest = job?.slowest_rank ?? -1;
  const [window, arrived] = [axis.window.value, axis.arrived.value];
  const every = Math.ceil(ranks.length / MOST_ROWS);
  const shown = ranks.filter(
    (rank, at) => at % every === 0 || rank === slowest || rank === now.rank,
  );
  const height = mapHeight(shown.length);
  useLayoutEffect(() => {
    const tracks = axis.about.value.value?.tracks ?? [];
    const pieces = (rank: number, kind: string): Piece[] => {
      const track = tracks.find((one) => one.rank === rank && one.kind === kind);
      return track ? axis.shown(track.id, window, width * devicePixelRatio) : [];
    };
    const rows = shown.map((rank) => ({
      rank,
      stages: pieces(rank, "stages"),
      idle: pieces(rank, "idle"),
    }));
    drawRanks(canvas.current!, { rows, window, width, palette, open: now.rank, slowest });
  }, [shown.join(), window.from, window.to, width, palette, arrived, now.rank, slowest]);
  /** The rank at a point, and its step then: the one that is open where the rank has it. */
  const meet = (event: MouseEvent): StepRow | undefined => {
    const rank =
      shown[Math.min(Math.floor((event.offsetY / height) * shown.length), shown.length - 1)];
    const time = window.from + (event.offsetX / width) * (window.to - window.from);
    const mine = steps.filter((one) => one.rank === rank);
    const then = mine.find((one) => one.start_ns <= time && time < one.start_ns + one.runtime_ns);
    return then ?? mine.find((one) => one.step === now.step) ?? mine[0];
  };
  const which = slowest < 0 ? "" : `; look at rank ${slowest} first`;
  return (
    <>
      <RankNames ranks={shown} height={height} width={names} open={now.rank} slowest={slowest} />
      <canvas
        ref={canvas}
        role="img"
        aria-label={`${ranks.length} ranks by time; step ${now.step} of rank ${now.rank} is open${which}`}
        style={{ width: `${width}px`, height: `${height}px` }}
        onPointerMove={(event) => {
          const step = meet(event);
          const marked = step?.rank === slowest ? ", the rank to look at first" : "";
          event.currentTarget.title = step ? `${stepTitle(step, true)}${marked}` : "";
        }}
        onClick={(event) => {
          const step = meet(event);
          if (step) store.open(step.id, "");
        }}
      />
    </>
  );
}

/** Names of the rows, as many as there is room for; the rank on screen and the slowest always. */
function RankNames(props: {
  ranks: number[];
  height: number;
  width: number;
  open: number;
  slowest: number;
}): JSX.Element {
  const { ranks, height, width, open, slowest } = props;
  const tall = height / ranks.length;
  const apart = Math.ceil(ROW_PX / tall);
  const always = (rank: number): boolean => rank === open || rank === slowest;
  const hidden = (at: number): boolean =>
    ranks.slice(Math.max(at - apart + 1, 0), at + apart).some(always);
  return (
    <ol
      class="rank-names"
      aria-hidden="true"
      style={{ width: `${width}px`, height: `${height}px` }}
    >
      {ranks.map((rank, at) => {
        if (!always(rank) && (at % apart > 0 || hidden(at))) return null;
        const kind = rank === slowest ? "slowest" : rank === open ? "open" : "";
        return (
          <li key={rank} class={kind} style={{ top: `${(at + 0.5) * tall}px` }}>
            {width < 20 ? rank : `rank ${rank}`}
          </li>
        );
      })}
    </ol>
  );
}

function Walk({ store, by }: { store: Store; by: 1 | -1 }): JSX.Element {
  const [name, key, sign] = by > 0 ? ["Next", "]", "▸"] : ["Previous", "[", "◂"];
  const now = stepNow(store);
  const steps = store.overview.value.value?.steps ?? [];
  return (
    <button
      type="button"
      class="icon"
      aria-label={`${name} step`}
      title={`${name} step (${key})`}
      disabled={!now || !stepBeside(steps, now, by)}
      onClick={() => walkSteps(store, by)}
    >
      {sign}
    </button>
  );
}

function stepTitle(one: StepRow, several: boolean): string {
  const name = `step ${one.step}${several ? ` of rank ${one.rank}` : ""}`;
  const device = `device busy ${duration(one.device_busy_ns)}, idle ${duration(one.device_idle_ns)}`;
  const works = one.device_busy_ns + one.device_idle_ns > 0;
  return `${name}: ${milliseconds(one.runtime_ns / 1e6)}${works ? `, ${device}` : ""}`;
}
