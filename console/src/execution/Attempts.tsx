import { ChevronDown, ChevronRight, ListX, X } from "lucide-react";
import { useState } from "react";
import { useAttempts } from "../api/attempts";
import type { AttemptRow } from "../api/documents";
import { CopyButton } from "../elements/CopyButton";
import { JsonValue } from "../elements/JsonTree";
import { Empty, Failure, Loading } from "../elements/states";
import { Status } from "../elements/status";
import { Elapsed, Time } from "../elements/time";
import { Clones } from "./Clones";
import "./attempts.css";

interface Props {
  id: string;
  /** Only attempts of this step, if not empty. */
  step: string;
  isFanOut: boolean;
  onStep: (path: string | null) => void;
}

/** The attempts of an execution or of one step, as a table. */
export function Attempts({ id, step, isFanOut, onStep }: Props) {
  return (
    <>
      {step && (
        <div className="attempts-tools">
          <span className="chip">
            <span>
              Step: <strong>{step}</strong>
            </span>
            <button type="button" aria-label="Show all steps" onClick={() => onStep(null)}>
              <X size={14} aria-hidden="true" />
            </button>
          </span>
        </div>
      )}
      {isFanOut ? <Clones id={id} fanOut={step} onStep={onStep} /> : <AttemptTable id={id} step={step} />}
    </>
  );
}

function AttemptTable({ id, step }: { id: string; step: string }) {
  const attempts = useAttempts(id, step);
  const rows = attempts.data?.pages.flatMap((page) => page.items) ?? [];
  if (attempts.isPending) return <Loading what="attempts" rows={6} />;
  if (attempts.error) return <Failure error={attempts.error} onRetry={() => void attempts.refetch()} />;
  if (!rows.length) {
    return (
      <Empty icon={ListX} title="No attempts">
        {step ? `Step “${step}” has not started.` : "No step has started yet."}
      </Empty>
    );
  }
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <section className="table-scroll" aria-label="Attempts" tabIndex={0}>
        <table className="attempts">
          <thead>
            <tr>
              <th scope="col">Step</th>
              <th scope="col">Phase</th>
              <th scope="col" className="number">
                Attempt
              </th>
              <th scope="col">Status</th>
              <th scope="col">Started</th>
              <th scope="col">Duration</th>
              <th scope="col">Error</th>
            </tr>
          </thead>
          {rows.map((row) => (
            <AttemptRows key={row.step_execution_id + row.run} row={row} />
          ))}
        </table>
      </section>
      {attempts.hasNextPage && (
        <div className="more">
          <button type="button" className="button" onClick={() => void attempts.fetchNextPage()}>
            {attempts.isFetchingNextPage ? "Loading…" : "Show more"}
          </button>
        </div>
      )}
    </>
  );
}

function AttemptRows({ row }: { row: AttemptRow }) {
  const [isOpen, setIsOpen] = useState(false);
  const Icon = isOpen ? ChevronDown : ChevronRight;
  return (
    <tbody>
      <tr>
        <td>
          <button type="button" className="fold" aria-expanded={isOpen} onClick={() => setIsOpen(!isOpen)}>
            <Icon size={14} aria-hidden="true" />
            {row.step_id}
          </button>
        </td>
        <td>{row.kind}</td>
        <td className="number">{row.attempt_number}</td>
        <td>
          <Status status={row.status} />
        </td>
        <td>
          <Time at={row.started_at} />
        </td>
        <td>
          <Elapsed from={row.started_at} to={row.finished_at} />
        </td>
        <td className="error-cell">{row.error_code ?? <span className="secondary">–</span>}</td>
      </tr>
      {isOpen && (
        <tr className="attempt-detail">
          <td colSpan={7}>
            <AttemptDetail row={row} />
          </td>
        </tr>
      )}
    </tbody>
  );
}

function AttemptDetail({ row }: { row: AttemptRow }) {
  return (
    <div className="stack">
      {row.error_summary && <p className="wrap error-summary">{row.error_summary}</p>}
      <dl className="facts">
        {row.error_class && <Fact name="Error class">{row.error_class}</Fact>}
        {row.error_code && <Fact name="Error code">{row.error_code}</Fact>}
        {row.retry_after_at && (
          <Fact name="Retry">
            <Time at={row.retry_after_at} />
          </Fact>
        )}
        <Fact name="Worker">{row.worker || "–"}</Fact>
        <Fact name="Generation">{row.generation}</Fact>
        <Fact name="Run">{row.run}</Fact>
        <Fact name="Finished">
          <Time at={row.finished_at} />
        </Fact>
        <Fact name="Idempotency key" isWide>
          <span className="row">
            <code className="wrap">{row.idempotency_key}</code>
            <CopyButton text={row.idempotency_key} name="the idempotency key" />
          </span>
        </Fact>
      </dl>
      {row.error_trace && <Traceback text={row.error_trace} />}
      {row.result !== null && <JsonValue value={row.result} name="Result" />}
    </div>
  );
}

export function Traceback({ text }: { text: string }) {
  return (
    <section aria-label="Traceback">
      <div className="row">
        <h3>Traceback</h3>
        <CopyButton text={text} name="the traceback" />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls */}
      <pre className="pre" tabIndex={0}>
        {text}
      </pre>
    </section>
  );
}

interface FactProps {
  name: string;
  isWide?: boolean;
  children: React.ReactNode;
}

export function Fact({ name, isWide = false, children }: FactProps) {
  return (
    <div className={isWide ? "wide" : undefined}>
      <dt>{name}</dt>
      <dd className="wrap">{children}</dd>
    </div>
  );
}
