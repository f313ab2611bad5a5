import { ChevronRight, Network, Table2 } from "lucide-react";
import { useCallback, useEffect, useRef } from "react";
import { ActionButtons } from "../actions/ActionButtons";
import type { ExecutionDocument, GraphDocument } from "../api/documents";
import { useExecution, useGraph, useReview } from "../api/queries";
import { announce } from "../elements/announcements";
import { CopyButton } from "../elements/CopyButton";
import { Failure, Loading } from "../elements/states";
import { lookOf, Status } from "../elements/status";
import { Elapsed, Time } from "../elements/time";
import { useWatched } from "../live/LiveUpdates";
import { Link, useParameters } from "../navigation/location";
import { Attempts, Fact } from "./Attempts";
import { BlockedCard } from "./BlockedCard";
import { StepGraph } from "./StepGraph";
import { StepTable } from "./StepTable";
import { Timeline } from "./Timeline";
import { useActions } from "./useActions";
import { Values } from "./Values";
import "./execution.css";

/** One execution: why it is blocked and what helps, its graph, and its attempts over time. */
export default function ExecutionPage({ id }: { id: string }) {
  const execution = useExecution(id);
  const graph = useGraph(id);
  useWatched(id, execution.isSuccess);
  if (execution.isPending) return <Loading what="the execution" rows={12} />;
  if (!execution.data) return <Failure isPage error={execution.error} onRetry={() => void execution.refetch()} />;
  return (
    <div className="stack">
      <Head execution={execution.data} seq={graph.data?.seq ?? 0} />
      <GraphCard graph={graph.data} error={graph.error} onRetry={() => void graph.refetch()} />
      <Details execution={execution.data} graph={graph.data} />
    </div>
  );
}

function Head({ execution, seq }: { execution: ExecutionDocument; seq: number }) {
  const review = useReview(execution.blocked?.review_id ?? "").data;
  const { helpful, others } = useActions(execution, seq, review);
  useStatusAnnounced(execution.status);
  const { blocked, error } = execution;
  return (
    <>
      <header className="stack execution-head">
        <nav aria-label="Breadcrumb" className="row small secondary">
          <Link to="/executions">Executions</Link>
          <ChevronRight size={14} aria-hidden="true" />
          <Link to={`/executions?definition=${encodeURIComponent(execution.definition_id)}`}>
            {execution.definition_id}
          </Link>
        </nav>
        <div className="page-head">
          <h1>
            {execution.definition_id} <span className="secondary">v{execution.definition_version}</span>
          </h1>
          <Status status={headStatus(execution)} strong />
          <div className="end">
            <ActionButtons actions={others} />
          </div>
        </div>
        <dl className="facts">
          <Fact name="Execution">
            <span className="row">
              <code>{execution.execution_id}</code>
              <CopyButton text={execution.execution_id} name="the id" />
            </span>
          </Fact>
          {execution.target_object_id && (
            <Fact name={execution.target_object_type ?? "Target"}>{execution.target_object_id}</Fact>
          )}
          <Fact name="Started">
            <Time at={execution.started_at} />
          </Fact>
          <Fact name="Duration">
            <Elapsed from={execution.started_at} to={execution.completed_at} />
          </Fact>
          {execution.idempotency_key && <Fact name="Idempotency key">{execution.idempotency_key}</Fact>}
          {execution.correlation_id !== execution.execution_id && (
            <Fact name="Correlation id">
              <Link to={`/executions?correlation_id=${encodeURIComponent(execution.correlation_id)}`}>
                {execution.correlation_id}
              </Link>
            </Fact>
          )}
        </dl>
      </header>
      {blocked && <BlockedCard blocked={blocked} review={review} actions={helpful} />}
      {error && (
        <section className="card failure tone-failed" aria-label="Error">
          <h2>
            Failed at “{error.step_id}” <code>{error.code}</code>
          </h2>
          <p className="wrap">{error.summary}</p>
          <p className="small secondary">{error.error_class}</p>
        </section>
      )}
    </>
  );
}

/** While an execution rolls back, that says more than `running`. */
function headStatus(execution: ExecutionDocument): string {
  return execution.status === "running" && execution.phase === "compensation" ? "compensating" : execution.status;
}

function useStatusAnnounced(status: string): void {
  const previous = useRef(status);
  useEffect(() => {
    if (previous.current === status) return;
    previous.current = status;
    announce(`The execution is now ${lookOf(status).word}.`);
  }, [status]);
}

interface GraphCardProps {
  graph: GraphDocument | undefined;
  error: Error | null;
  onRetry: () => void;
}

function GraphCard({ graph, error, onRetry }: GraphCardProps) {
  const [parameters, change] = useParameters();
  const isTable = parameters.get("graph") === "table";
  const select = useCallback((path: string) => change({ step: path, tab: "attempts" }), [change]);
  return (
    <section className="card" aria-label="Steps">
      <header>
        <h2>Steps</h2>
        <div className="end segments">
          <button type="button" aria-pressed={!isTable} onClick={() => change({ graph: null })}>
            <Network size={14} aria-hidden="true" />
            Graph
          </button>
          <button type="button" aria-pressed={isTable} onClick={() => change({ graph: "table" })}>
            <Table2 size={14} aria-hidden="true" />
            Table
          </button>
        </div>
      </header>
      {graph ? (
        isTable ? (
          <StepTable graph={graph} onSelect={select} />
        ) : (
          <StepGraph graph={graph} selected={parameters.get("step") ?? ""} onSelect={select} />
        )
      ) : error ? (
        <Failure error={error} onRetry={onRetry} />
      ) : (
        <Loading what="the graph" rows={6} />
      )}
    </section>
  );
}

const TABS = [
  ["timeline", "Timeline"],
  ["attempts", "Attempts"],
  ["values", "Values"],
] as const;

type Tab = (typeof TABS)[number][0];

function Details({ execution, graph }: { execution: ExecutionDocument; graph: GraphDocument | undefined }) {
  const [parameters, change] = useParameters();
  const tab = TABS.find(([name]) => name === parameters.get("tab"))?.[0] ?? "timeline";
  const step = parameters.get("step") ?? "";
  const select = useCallback((path: string | null) => change({ step: path, tab: "attempts" }), [change]);
  const isFanOut = graph?.nodes.some((node) => node.path === step && node.kind === "fan_out") ?? false;
  return (
    <section className="card" aria-label="Details">
      <TabList tab={tab} onTab={(next) => change({ tab: next === "timeline" ? null : next })} />
      <div id="details" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === "timeline" && <Timeline execution={execution} onSelect={select} />}
        {tab === "attempts" && <Attempts id={execution.execution_id} step={step} isFanOut={isFanOut} onStep={select} />}
        {tab === "values" && <Values execution={execution} />}
      </div>
    </section>
  );
}

function TabList({ tab, onTab }: { tab: Tab; onTab: (tab: Tab) => void }) {
  const move = (event: React.KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const index = TABS.findIndex(([name]) => name === tab);
    const next = TABS[(index + step + TABS.length) % TABS.length]?.[0] ?? tab;
    onTab(next);
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <div className="tabs" role="tablist" aria-label="Details">
      {TABS.map(([name, title]) => (
        <button
          key={name}
          id={`tab-${name}`}
          type="button"
          role="tab"
          aria-selected={tab === name}
          aria-controls="details"
          tabIndex={tab === name ? 0 : -1}
          onClick={() => onTab(name)}
          onKeyDown={move}
        >
          {title}
        </button>
      ))}
    </div>
  );
}
