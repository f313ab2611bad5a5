import { Activity, ArrowDown, ArrowUp, Columns3 } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import type { ExecutionSummary } from "../api/documents";
import { useExecutions } from "../api/queries";
import { announce } from "../elements/announcements";
import { Menu } from "../elements/Menu";
import { Empty, Failure, Loading, NoMatch } from "../elements/states";
import { Status } from "../elements/status";
import { Elapsed, Time } from "../elements/time";
import { type Changes, Link, useParameters } from "../navigation/location";
import { FILTERS, queryOf } from "./executionFilters";
import { FilterBar } from "./FilterBar";
import { useFreshRows } from "./useFreshRows";

interface Column {
  name: string;
  title: string;
  isDefault: boolean;
  cell: (row: ExecutionSummary) => React.ReactNode;
}

const COLUMNS: readonly Column[] = [
  {
    name: "definition",
    title: "Definition",
    isDefault: true,
    cell: (row) => (
      <span className="nowrap">
        {row.definition_id} <span className="secondary small">v{row.definition_version}</span>
      </span>
    ),
  },
  { name: "status", title: "Status", isDefault: true, cell: (row) => <RowStatus row={row} /> },
  {
    name: "target",
    title: "Target",
    isDefault: true,
    cell: (row) =>
      row.target_object_id && (
        <span className="wrap">
          <span className="secondary">{row.target_object_type}</span> {row.target_object_id}
        </span>
      ),
  },
  {
    name: "error",
    title: "Error",
    isDefault: true,
    cell: (row) => row.error_class,
  },
  {
    name: "correlation",
    title: "Correlation id",
    isDefault: false,
    cell: (row) => <span className="mono wrap">{row.correlation_id}</span>,
  },
  { name: "started", title: "Started", isDefault: true, cell: (row) => <Time at={row.started_at} /> },
  {
    name: "completed",
    title: "Completed",
    isDefault: false,
    cell: (row) => row.completed_at && <Time at={row.completed_at} />,
  },
  {
    name: "duration",
    title: "Duration",
    isDefault: true,
    cell: (row) => <Elapsed from={row.started_at} to={row.completed_at} />,
  },
];

function RowStatus({ row }: { row: ExecutionSummary }) {
  const reason = row.blocked?.reason;
  return (
    <span className="row">
      <Status status={row.status} />
      {reason && row.status === "running" && <span className="secondary small">· {reason.replaceAll("_", " ")}</span>}
    </span>
  );
}

export function ExecutionsPage() {
  const [parameters, change] = useParameters();
  const query = queryOf(parameters);
  const columns = chosenColumns(parameters);
  const list = useExecutions(query);
  const rows = list.data?.pages.flatMap((page) => page.items) ?? [];
  const isFiltered = Object.keys(query).some((name) => name !== "order");
  const clear = () => change({ q: null, ...Object.fromEntries(FILTERS.map(({ name }) => [name, null])) });
  return (
    <div className="stack">
      <div className="page-head">
        <h1>Executions</h1>
      </div>
      <FilterBar
        filters={FILTERS}
        parameters={parameters}
        change={change}
        search="Id, idempotency key, target or correlation id"
      >
        <ColumnChoice chosen={columns} change={change} />
      </FilterBar>
      <div className="card">
        {list.isPending ? (
          <Loading what="executions" rows={12} />
        ) : list.error ? (
          <Failure error={list.error} onRetry={() => void list.refetch()} />
        ) : rows.length ? (
          <Rows
            rows={rows}
            columns={columns}
            oldest={query["order"] === "oldest"}
            change={change}
            reload={list.refetch}
          />
        ) : isFiltered ? (
          <NoMatch what="executions" onClear={clear} />
        ) : (
          <Empty icon={Activity} title="No executions" command={'tenuto run DEFINITION --input \'{"key": "value"}\''}>
            Executions of your sagas appear here as soon as they start.
          </Empty>
        )}
      </div>
      {list.hasNextPage && (
        <button
          type="button"
          className="button"
          aria-disabled={list.isFetchingNextPage}
          onClick={() => void list.fetchNextPage()}
        >
          {list.isFetchingNextPage ? "Loading…" : "Show more"}
        </button>
      )}
    </div>
  );
}

interface RowsProps {
  rows: ExecutionSummary[];
  columns: readonly Column[];
  oldest: boolean;
  change: (changes: Changes) => void;
  reload: () => Promise<unknown>;
}

function Rows({ rows, columns, oldest, change, reload }: RowsProps) {
  const area = useRef<HTMLElement>(null);
  const hasNews = useFreshRows(area, reload);
  const Arrow = oldest ? ArrowUp : ArrowDown;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <section className="table-scroll" ref={area} aria-label="Executions" tabIndex={0}>
      {hasNews && (
        <div className="news">
          <button type="button" className="button small" onClick={() => void reload()}>
            <ArrowUp size={14} aria-hidden="true" />
            The list has changed: show it
          </button>
        </div>
      )}
      <table className="executions">
        <thead>
          <tr>
            <th scope="col">Execution</th>
            {columns.map(({ name, title }) =>
              name === "started" ? (
                <th key={name} scope="col" aria-sort={oldest ? "ascending" : "descending"}>
                  <button type="button" onClick={() => change({ order: oldest ? null : "oldest" })}>
                    {title}
                    <Arrow size={12} aria-hidden="true" />
                  </button>
                </th>
              ) : (
                <th key={name} scope="col">
                  {title}
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <Row key={row.execution_id} row={row} columns={columns} />
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Row({ row, columns }: { row: ExecutionSummary; columns: readonly Column[] }) {
  const changed = useChanged(row.status);
  return (
    <tr className={changed ? "changed" : undefined}>
      <td>
        <Link className="mono nowrap" to={`/executions/${encodeURIComponent(row.execution_id)}`}>
          {row.execution_id}
        </Link>
      </td>
      {columns.map(({ name, cell }) => (
        <td key={name} data-column={name}>
          {cell(row)}
        </td>
      ))}
    </tr>
  );
}

/** Whether a value has changed within the last 600 ms. */
function useChanged(value: string): boolean {
  const previous = useRef(value);
  const [isChanged, setIsChanged] = useState(false);
  useEffect(() => {
    if (previous.current === value) return;
    previous.current = value;
    setIsChanged(true);
    announce("The list of executions has changed.");
    const timer = setTimeout(() => setIsChanged(false), 600);
    return () => clearTimeout(timer);
  }, [value]);
  return isChanged;
}

function chosenColumns(parameters: URLSearchParams): Column[] {
  const names = parameters.get("columns")?.split(",");
  return COLUMNS.filter((column) => (names ? names.includes(column.name) : column.isDefault));
}

function ColumnChoice({ chosen, change }: { chosen: readonly Column[]; change: (changes: Changes) => void }) {
  const toggle = (column: Column, isOn: boolean) => {
    const next = COLUMNS.filter((each) => (each === column ? isOn : chosen.includes(each)));
    const isDefault = COLUMNS.every((each) => each.isDefault === next.includes(each));
    change({ columns: isDefault ? null : next.map(({ name }) => name).join(",") || "none" });
  };
  return (
    <Menu
      label={
        <>
          <Columns3 size={14} aria-hidden="true" />
          Columns
        </>
      }
    >
      {() => (
        <ul className="menu-list">
          {COLUMNS.map((column) => (
            <li key={column.name}>
              <label>
                <input
                  type="checkbox"
                  checked={chosen.includes(column)}
                  onChange={(event) => toggle(column, event.target.checked)}
                />
                {column.title}
              </label>
            </li>
          ))}
        </ul>
      )}
    </Menu>
  );
}
