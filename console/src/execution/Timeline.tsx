import { useVirtualizer } from "@tanstack/react-virtual";
import { FoldHorizontal, GanttChart } from "lucide-react";
import { useEffect, useMemo, useRef } from "react";
import { useAttempts } from "../api/attempts";
import type { ExecutionDocument } from "../api/documents";
import { Empty, Failure, Loading } from "../elements/states";
import type { Tone } from "../elements/status";
import { useNow } from "../elements/time";
import { useParameters } from "../navigation/location";
import { durationText } from "../values/times";
import { type Bar, type Lane, lanesOf, Scale } from "./lanes";
import "./timeline.css";

const LANE = 32;

/** Every attempt of every phase on a line for each step. Only the visible lines are in the page. */
export function Timeline({ execution, onSelect }: { execution: ExecutionDocument; onSelect: (path: string) => void }) {
  const [parameters, change] = useParameters();
  const attempts = useAttempts(execution.execution_id);
  const rows = useMemo(() => attempts.data?.pages.flatMap((page) => page.items) ?? [], [attempts.data]);
  const waits = useMemo(() => waitsOf(execution), [execution]);
  const lanes = useMemo(() => lanesOf(rows, waits), [rows, waits]);
  if (attempts.isPending) return <Loading what="the timeline" rows={6} />;
  if (attempts.error) return <Failure error={attempts.error} onRetry={() => void attempts.refetch()} />;
  if (!lanes.length) {
    return (
      <Empty icon={GanttChart} title="No attempts yet">
        The first attempt appears here as soon as a worker starts it.
      </Empty>
    );
  }
  const isCollapsed = parameters.get("idle") === "short";
  return (
    <>
      <div className="timeline-tools">
        <Legend />
        <button
          type="button"
          className="button small"
          aria-pressed={isCollapsed}
          onClick={() => change({ idle: isCollapsed ? null : "short" })}
        >
          <FoldHorizontal size={14} aria-hidden="true" />
          {isCollapsed ? "Show idle time" : "Shorten idle time"}
        </button>
      </div>
      <Lanes
        lanes={lanes}
        execution={execution}
        isCollapsed={isCollapsed}
        onSelect={onSelect}
        onEnd={() => {
          if (attempts.hasNextPage && !attempts.isFetchingNextPage) void attempts.fetchNextPage();
        }}
      />
      <p className="small secondary timeline-note">
        {rows.length} attempts{attempts.hasNextPage ? " so far; scroll for more" : ""}. The tab Attempts lists the same
        as a table.
      </p>
    </>
  );
}

function waitsOf({ steps }: ExecutionDocument): Map<string, Tone> {
  const waits = new Map<string, Tone>();
  for (const { path, type } of steps) {
    if (type === "human_approval") waits.set(path, "person");
    else if (type === "wait") waits.set(path, "timer");
  }
  return waits;
}

function Legend() {
  const parts = [
    ["attempt tone-succeeded", "attempt"],
    ["attempt tone-compensation", "compensation"],
    ["retry-wait tone-timer", "waits for a retry"],
    ["wait tone-person", "waits for a person"],
    ["wait tone-timer", "waits for a time or a signal"],
  ];
  return (
    <ul className="legend">
      {parts.map(([look, text]) => (
        <li key={text} className="small secondary">
          <span className={`bar ${look}`} />
          {text}
        </li>
      ))}
    </ul>
  );
}

interface LanesProps {
  lanes: readonly Lane[];
  execution: ExecutionDocument;
  isCollapsed: boolean;
  onSelect: (path: string) => void;
  onEnd: () => void;
}

function Lanes({ lanes, execution, isCollapsed, onSelect, onEnd }: LanesProps) {
  const now = useNow();
  const area = useRef<HTMLDivElement>(null);
  const from = Date.parse(execution.started_at);
  const lastBar = useMemo(
    () => Math.max(...lanes.flatMap((lane) => lane.bars.map((bar) => bar.to ?? bar.from))),
    [lanes],
  );
  const to =
    execution.completed_at === null ? Math.max(now, lastBar) : Math.max(Date.parse(execution.completed_at), from + 1);
  const scale = useMemo(() => new Scale(lanes, from, to, isCollapsed), [lanes, from, to, isCollapsed]);
  const virtual = useVirtualizer({
    count: lanes.length,
    getScrollElement: () => area.current,
    estimateSize: () => LANE,
    overscan: 12,
  });
  const visible = virtual.getVirtualItems();
  const last = visible.at(-1)?.index ?? 0;
  useEffect(() => {
    if (last >= lanes.length - 1) onEnd();
  }, [last, lanes.length, onEnd]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <section className="lanes" ref={area} aria-label="Timeline" tabIndex={0}>
      <Axis from={from} to={to} scale={scale} />
      <ul style={{ height: virtual.getTotalSize() }}>
        {visible.map(({ index, start }) => {
          const lane = lanes[index];
          return (
            lane && (
              <li key={lane.path} style={{ transform: `translateY(${start}px)` }}>
                <button type="button" onClick={() => onSelect(lane.path)} title={lane.path}>
                  {lane.name}
                </button>
                <div className="lane">
                  {scale.breaks.map(([left, right]) => (
                    <span key={left} className="idle" style={span(left, right)} />
                  ))}
                  {lane.bars.map((bar) => (
                    <BarBox key={`${bar.label} ${bar.from}`} bar={bar} scale={scale} to={to} />
                  ))}
                </div>
              </li>
            )
          );
        })}
      </ul>
    </section>
  );
}

function BarBox({ bar, scale, to }: { bar: Bar; scale: Scale; to: number }) {
  const end = bar.to ?? to;
  const text = `${bar.label}, ${durationText(end - bar.from)}${bar.to === null ? " so far" : ""}`;
  return (
    <span
      className={`bar ${bar.kind} tone-${bar.tone}`}
      style={span(scale.place(bar.from), scale.place(end))}
      title={text}
    >
      <span className="hidden-text">{text}</span>
    </span>
  );
}

function span(left: number, right: number): { left: string; width: string } {
  return { left: `${left * 100}%`, width: `${Math.max(0, right - left) * 100}%` };
}

const TICKS = [0, 0.25, 0.5, 0.75, 1];

function Axis({ from, to, scale }: { from: number; to: number; scale: Scale }) {
  return (
    <div className="axis" aria-hidden="true">
      <div className="lane">
        {TICKS.map((part) => {
          const at = from + (to - from) * part;
          return (
            <span key={part} style={{ left: `${scale.place(at) * 100}%` }} data-end={part === 1}>
              {durationText(at - from)}
            </span>
          );
        })}
      </div>
    </div>
  );
}
