"""Pages and figures: conversion of data to HTML."""
