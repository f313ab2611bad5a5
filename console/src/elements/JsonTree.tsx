import { ChevronDown, ChevronRight, Search } from "lucide-react";
import { memo, useMemo, useState } from "react";
import { ExactNumber, formatJson, type Json } from "../values/json";
import { findInJson } from "../values/search";
import { CopyButton } from "./CopyButton";
import "./json.css";

const OPEN_DEPTH = 2;
const CHUNK = 100;

interface Found {
  matches: ReadonlySet<string>;
  above: ReadonlySet<string>;
}

/** A JSON value as a tree, with search and copy. Numbers are shown as they were written. */
export function JsonValue({ value, name }: { value: unknown; name: string }) {
  const [text, setText] = useState("");
  const found = useMemo(() => findInJson(value as Json, text), [value, text]);
  const isTree = typeof value === "object" && value !== null && !(value instanceof ExactNumber);
  return (
    <section className="json" aria-label={name}>
      <div className="json-tools">
        <h3>{name}</h3>
        {isTree && (
          <div className="with-icon">
            <Search size={14} aria-hidden="true" />
            <input
              className="input"
              type="search"
              placeholder="Search"
              aria-label={`Search in ${name}`}
              value={text}
              onChange={(event) => setText(event.target.value)}
            />
          </div>
        )}
        {text && <span className="small secondary nowrap">{found.matches.size} found</span>}
        <CopyButton text={formatJson(value, 2)} name={name} />
      </div>
      <ul className="json-tree">
        <Node label={null} value={value as Json} path="$" depth={0} found={found} />
      </ul>
    </section>
  );
}

interface NodeProps {
  label: string | null;
  value: Json;
  path: string;
  depth: number;
  found: Found;
}

const Node = memo(function Node({ label, value, path, depth, found }: NodeProps) {
  const children = childrenOf(value);
  if (children === null) {
    return (
      <li className={found.matches.has(path) ? "match" : undefined}>
        {label !== null && <span className="json-key">{label}</span>}
        <Scalar value={value} />
      </li>
    );
  }
  return (
    <Branch label={label} items={children} isList={Array.isArray(value)} path={path} depth={depth} found={found} />
  );
});

interface BranchProps extends Omit<NodeProps, "value"> {
  items: [string, Json][];
  isList: boolean;
}

function Branch({ label, items, isList, path, depth, found }: BranchProps) {
  const [chosen, setChosen] = useState<boolean | null>(null);
  const [shown, setShown] = useState(CHUNK);
  const isOpen = chosen ?? (found.above.has(path) || depth < OPEN_DEPTH);
  const size = `${items.length} ${isList ? (items.length === 1 ? "item" : "items") : items.length === 1 ? "field" : "fields"}`;
  const Icon = isOpen ? ChevronDown : ChevronRight;
  return (
    <li className={found.matches.has(path) ? "match" : undefined}>
      <button type="button" className="json-fold" aria-expanded={isOpen} onClick={() => setChosen(!isOpen)}>
        <Icon size={14} aria-hidden="true" />
        {label !== null && <span className="json-key">{label}</span>}
        <span className="secondary">{isList ? `[${size}]` : `{${size}}`}</span>
      </button>
      {isOpen && items.length > 0 && (
        <ul>
          {items.slice(0, shown).map(([key, each]) => (
            <Node key={key} label={key} value={each} path={`${path}/${key}`} depth={depth + 1} found={found} />
          ))}
          {items.length > shown && (
            <li>
              <button type="button" className="button small" onClick={() => setShown(shown + CHUNK)}>
                {items.length - shown} more
              </button>
            </li>
          )}
        </ul>
      )}
    </li>
  );
}

function Scalar({ value }: { value: Json }) {
  const kind = value === null ? "null" : value instanceof ExactNumber ? "number" : typeof value;
  return <span className={`json-${kind}`}>{formatJson(value)}</span>;
}

function childrenOf(value: Json): [string, Json][] | null {
  if (Array.isArray(value)) return value.map((each, index) => [String(index), each]);
  if (value === null || typeof value !== "object" || value instanceof ExactNumber) return null;
  return Object.entries(value);
}
