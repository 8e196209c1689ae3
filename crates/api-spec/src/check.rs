//! The rules that hold between the columns of a line and between lines.

use std::collections::{HashMap, HashSet};

use crate::error::LineError;
use crate::model::{Api, Body, Class, Context, Function, Object, ParameterKind, Types};

/// Checks all rules and fills in what variants take from their bases.
pub(crate) fn check(mut functions: Vec<Function>, types: Types) -> Result<Api, (usize, LineError)> {
    let index = index(&functions)?;
    for function in &functions {
        line_rules(function).map_err(|fault| (function.line, fault))?;
    }
    for i in 0..functions.len() {
        if let Some(alias) = &functions[i].alias {
            let base = index.get(alias.base.as_str()).map(|&at| functions[at].clone());
            let base = base.filter(|base| base.alias.is_none());
            let base = base.ok_or_else(|| (functions[i].line, LineError::Base(alias.base.clone())))?;
            let variant = &mut functions[i];
            (variant.params, variant.class, variant.journal) = (base.params, base.class, base.journal);
            variant.returns = base.returns;
        }
    }
    Ok(Api { functions, types })
}

fn index(functions: &[Function]) -> Result<HashMap<String, usize>, (usize, LineError)> {
    let mut index: HashMap<String, usize> = HashMap::new();
    for (at, function) in functions.iter().enumerate() {
        if let Some(first) = index.insert(function.name.clone(), at) {
            let first = functions[first].line;
            return Err((function.line, LineError::Twice { name: function.name.clone(), first }));
        }
    }
    Ok(index)
}

fn line_rules(function: &Function) -> Result<(), LineError> {
    let mut names = HashSet::new();
    if let Some(twice) = function.params.iter().find(|param| !names.insert(&param.name)) {
        return Err(LineError::ParamTwice(twice.name.clone()));
    }
    let mut named = function.journal.object().into_iter().flat_map(Object::params);
    if let Some(name) = named.find(|name| !function.params.iter().any(|param| param.name == *name)) {
        return Err(LineError::JournalParam(name.to_owned()));
    }
    if let Some((_, before_last)) = function.params.split_last()
        && let Some(param) = before_last.iter().find(|param| param.kind == ParameterKind::InBytes)
    {
        return Err(LineError::BytesNotLast(param.name.clone()));
    }
    if let Context::Of(name) = &function.context {
        let is_it = |kind: &ParameterKind| matches!(kind, ParameterKind::Value(ty) if ty.is_handle());
        if !function.params.iter().any(|param| &param.name == name && is_it(&param.kind)) {
            return Err(LineError::NoContext(name.clone()));
        }
    }
    needs_hand(function)
}

fn needs_hand(function: &Function) -> Result<(), LineError> {
    if matches!(function.body, Body::By(_) | Body::Always(_))
        || function.alias.is_some()
        || function.class == Class::Refused
    {
        return Ok(());
    }
    if matches!(function.class, Class::Local | Class::Upcall) {
        return Err(LineError::NeedsPath(function.class));
    }
    let is_by_hand = |kind: &ParameterKind| {
        let is_minted = matches!(kind, ParameterKind::OutNew(ty) if ty.object().is_none());
        !kind.travels() || (is_minted && function.body == Body::Generated)
    };
    match function.params.iter().find(|param| is_by_hand(&param.kind)) {
        Some(param) => Err(LineError::NeedsHand(param.name.clone())),
        None => Ok(()),
    }
}
